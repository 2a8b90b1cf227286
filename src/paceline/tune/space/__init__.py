"""Search spaces: the functions to write them, their domains, and `Space`, which draws configurations."""

from paceline.tune.space.domains import Categorical, Domain, Float, Function, Grid, Integer, Normal
from paceline.tune.space.keyed_random import KeyedRandom
from paceline.tune.space.primitives import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from paceline.tune.space.space import Space
from paceline.tune.space.tree import Option, Path, SpaceParameter

__all__ = [
    "Categorical",
    "KeyedRandom",
    "Domain",
    "Float",
    "Function",
    "Grid",
    "Integer",
    "Normal",
    "Option",
    "Path",
    "SpaceParameter",
    "Space",
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
]
