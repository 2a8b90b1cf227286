"""The stoppers, under the name by which Ray Tune's users import them."""

from paceline.tune.stoppers import __all__ as __all__
from paceline.tune.stoppers import __getattr__ as __getattr__
