"""Search by Optuna: `OptunaSearch`."""

try:
    import optuna  # noqa: F401
except ImportError as error:
    raise ImportError(
        f'OptunaSearch needs the package optuna: {error}\n\nhint: pip install "paceline[tune]"', name="optuna"
    ) from error

from paceline.tune.search.optuna.search import OptunaSearch

__all__ = ["OptunaSearch"]
