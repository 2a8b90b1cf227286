"""The built-in search under the name that it has in Ray Tune."""

from paceline.tune.search.basic import BasicVariantGenerator

__all__ = ["BasicVariantGenerator"]
