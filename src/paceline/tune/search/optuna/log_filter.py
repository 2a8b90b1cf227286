"""Silences Optuna's logging and warnings during this package's own calls only.

The user's own use of Optuna logs and warns as before: the filter passes everything outside our calls, and the global
verbosity is not changed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning

_is_own_call: ContextVar[bool] = ContextVar("paceline_optuna_call", default=False)


class _OptunaLogFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not _is_own_call.get() or record.levelno >= logging.ERROR


_filter = _OptunaLogFilter()


@contextmanager
def silence_optuna() -> Iterator[None]:
    """Suppress all but errors of Optuna. Warning filters are process-wide: use it only in the driver's thread."""
    token = _is_own_call.set(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            warnings.filterwarnings("ignore", category=UserWarning, module=r"optuna(\.|$)")
            yield
    finally:
        _is_own_call.reset(token)


@contextmanager
def unsilence_optuna() -> Iterator[None]:
    """Restore Optuna's output inside `silence_optuna`, for a call to a user's function."""
    token = _is_own_call.set(False)
    try:
        yield
    finally:
        _is_own_call.reset(token)


def _attach_filter() -> None:
    # A logger's filter does not apply to records of its child loggers, and some Optuna modules are imported late and
    # log at once: so each logger is created with the filter before its module requests it.
    root = Path(optuna.__file__).parent
    for file in root.rglob("*.py"):
        parts = file.relative_to(root.parent).with_suffix("").parts
        logging.getLogger(".".join(part for part in parts if part != "__init__")).addFilter(_filter)


_attach_filter()
