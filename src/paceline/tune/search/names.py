"""`create_searcher`: searchers by their short names."""

from __future__ import annotations

import importlib
from typing import Any

from paceline._core.arguments import bad_value, join_or
from paceline.tune.search.searcher import Searcher

SEARCHER_MODULES = {
    "BasicVariantGenerator": "paceline.tune.search.basic_variant",
    "OptunaSearch": "paceline.tune.search.optuna",
    "HyperOptSearch": "paceline.tune.search.hyperopt",
    "BayesOptSearch": "paceline.tune.search.bayesopt",
    "AxSearch": "paceline.tune.search.ax",
    "TuneBOHB": "paceline.tune.search.bohb",
    "NevergradSearch": "paceline.tune.search.nevergrad",
    "HEBOSearch": "paceline.tune.search.hebo",
    "ZOOptSearch": "paceline.tune.search.zoopt",
}

SEARCHERS = {
    "variant_generator": "BasicVariantGenerator",
    "random": "BasicVariantGenerator",
    "optuna": "OptunaSearch",
    "hyperopt": "HyperOptSearch",
    "bayesopt": "BayesOptSearch",
    "ax": "AxSearch",
    "bohb": "TuneBOHB",
    "nevergrad": "NevergradSearch",
    "hebo": "HEBOSearch",
    "zoopt": "ZOOptSearch",
}


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """Return a searcher by its short name, such as `"optuna"`, with these arguments."""
    name = search_alg.lower() if isinstance(search_alg, str) else ""
    if name not in SEARCHERS:
        raise bad_value("search_alg", join_or(map(repr, SEARCHERS)), search_alg)
    kind = SEARCHERS[name]
    made: Searcher = getattr(importlib.import_module(SEARCHER_MODULES[kind]), kind)(**kwargs)
    return made
