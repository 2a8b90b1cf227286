"""Optuna without its voice, for what this package does with it and for nothing else.

What the user does with Optuna logs and warns as before: the filter lets pass all that is not said during a call of
ours, and the global verbosity is not touched.
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

_ours: ContextVar[bool] = ContextVar("paceline_optuna_call", default=False)


class _NotOurs(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not _ours.get() or record.levelno >= logging.ERROR


_filter = _NotOurs()


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing that Optuna says below an error is heard in here.

    Python's filters of warnings are those of the whole process: this is for the driver's own thread.
    """
    token = _ours.set(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            warnings.filterwarnings("ignore", category=UserWarning, module=r"optuna(\.|$)")
            yield
    finally:
        _ours.reset(token)


@contextmanager
def heard() -> Iterator[None]:
    """In the middle of `quiet`, a function of the user's."""
    token = _ours.set(False)
    try:
        yield
    finally:
        _ours.reset(token)


def _attach() -> None:
    # A filter of a logger is not asked for the records of loggers below it, and some modules of Optuna are imported
    # late and log at once: each gets its logger, with the filter, before it asks for it.
    root = Path(optuna.__file__).parent
    for file in root.rglob("*.py"):
        parts = file.relative_to(root.parent).with_suffix("").parts
        logging.getLogger(".".join(part for part in parts if part != "__init__")).addFilter(_filter)


_attach()
