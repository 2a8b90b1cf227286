"""Search spaces: the functions they are written with, their domains, and `Space`, which draws configurations."""

from paceline.tune.space.chance import Chance
from paceline.tune.space.domains import Categorical, Domain, Float, Function, Grid, Integer, Normal
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
from paceline.tune.space.tree import Option, Path, Place

__all__ = [
    "Categorical",
    "Chance",
    "Domain",
    "Float",
    "Function",
    "Grid",
    "Integer",
    "Normal",
    "Option",
    "Path",
    "Place",
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
