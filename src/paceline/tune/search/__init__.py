"""Searchers, which suggest configurations: grid and random search, Optuna, and a base for others."""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr

if TYPE_CHECKING:
    from paceline.tune.search.basic_variant import BasicVariantGenerator
    from paceline.tune.search.names import create_searcher
    from paceline.tune.search.searcher import Searcher
    from paceline.tune.search.wrappers import ConcurrencyLimiter, Repeater
    from paceline.tune.space.domains import grid_search

__all__ = ["BasicVariantGenerator", "ConcurrencyLimiter", "Repeater", "Searcher", "create_searcher", "grid_search"]

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.tune.search.basic_variant": ("BasicVariantGenerator",),
        "paceline.tune.search.names": ("create_searcher",),
        "paceline.tune.search.searcher": ("Searcher",),
        "paceline.tune.search.wrappers": ("ConcurrencyLimiter", "Repeater"),
        "paceline.tune.space.domains": ("grid_search",),
    },
)
