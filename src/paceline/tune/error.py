"""What a search ends with that cannot go on."""

from __future__ import annotations

from paceline._core.errors import PacelineError


class TuneError(PacelineError, RuntimeError):
    """A search could not go on, for another reason than its trials. What it has come to is kept and can go on."""


TuneError.__module__ = "paceline.tune"
