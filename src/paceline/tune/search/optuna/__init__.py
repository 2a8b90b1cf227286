"""Search by Optuna: `OptunaSearch`."""

from paceline._core.lazy_imports import import_extra

import_extra("optuna", "OptunaSearch")

from paceline.tune.search.optuna.search import OptunaSearch  # noqa: E402

__all__ = ["OptunaSearch"]
