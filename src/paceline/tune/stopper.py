"""The stoppers under their Ray Tune import path."""

from paceline.tune.stoppers import __all__ as __all__
from paceline.tune.stoppers import __getattr__ as __getattr__
