"""The error raised when a search cannot continue."""

from __future__ import annotations

from paceline._core.errors import PacelineError


class TuneError(PacelineError, RuntimeError):
    """A search could not continue, for a reason other than its trials. Its state is kept and it can be resumed."""


TuneError.__module__ = "paceline.tune"
