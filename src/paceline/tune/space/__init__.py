"""Search spaces: the functions to write them, their domains, and `Space`, which draws configurations."""

from paceline.tune.space.space import Space

__all__ = ["Space"]
