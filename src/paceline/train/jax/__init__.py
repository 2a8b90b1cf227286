"""Training with JAX. JAX itself is imported in the workers, not here."""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr
from paceline.train.jax.config import JaxConfig

if TYPE_CHECKING:
    from paceline.train.jax.checkpoint import OrbaxCheckpoint
    from paceline.train.jax.predictor import JaxPredictor
    from paceline.train.jax.trainer import JaxTrainer

__all__ = ["JaxConfig", "JaxPredictor", "JaxTrainer", "OrbaxCheckpoint"]

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.train.jax.checkpoint": ("OrbaxCheckpoint",),
        "paceline.train.jax.predictor": ("JaxPredictor",),
        "paceline.train.jax.trainer": ("JaxTrainer",),
    },
)
