"""The built-in searcher under its Ray Tune import path."""

from paceline.tune.search.basic import BasicVariantGenerator

__all__ = ["BasicVariantGenerator"]
