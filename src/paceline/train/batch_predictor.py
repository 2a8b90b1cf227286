"""`BatchPredictor` of Ray 2.0: a checkpoint and a predictor class, applied to a dataset with `map_batches`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from paceline._core.arguments import check_instance
from paceline._core.lazy_imports import explain_module
from paceline.train.checkpoint import Checkpoint
from paceline.train.predictor import Predictor

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset
    from paceline.data.preprocessor import Preprocessor

__all__ = ["BatchPredictor"]


class BatchPredictor:
    """Predicts for all rows of a dataset.

    predictor = BatchPredictor.from_checkpoint(result.checkpoint, TorchPredictor, model=Net())
    predictions = predictor.predict(dataset, feature_columns=["x"], keep_columns=["y"])

    A preprocessor in the checkpoint transforms the rows first. `predictor_kwargs` are those of the predictor class.
    """

    def __init__(self, checkpoint: Checkpoint, predictor_cls: type[Predictor], **predictor_kwargs: Any) -> None:
        check_instance("checkpoint", checkpoint, Checkpoint, "a paceline.train.Checkpoint")
        self._checkpoint = checkpoint
        self._predictor_cls = predictor_cls
        self._predictor_kwargs = predictor_kwargs
        self._preprocessor = checkpoint.get_preprocessor()

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, predictor_cls: type[Predictor], **kwargs: Any) -> Self:
        """Same as the constructor."""
        return cls(checkpoint, predictor_cls, **kwargs)

    def get_preprocessor(self) -> Preprocessor | None:
        return self._preprocessor

    def set_preprocessor(self, preprocessor: Preprocessor | None) -> None:
        """Transform the rows with this one instead; None: not at all."""
        self._preprocessor = preprocessor

    def predict(
        self,
        data: Dataset,
        *,
        feature_columns: str | Sequence[str] | None = None,
        keep_columns: Sequence[str] | None = None,
        batch_size: int = 4096,
        min_scoring_workers: int = 1,
        max_scoring_workers: int | None = None,
        num_cpus_per_worker: float | None = None,
        num_gpus_per_worker: float | None = None,
        **predict_kwargs: Any,
    ) -> Dataset:
        """Return the predictions, lazily, and beside them `keep_columns`. `predict_kwargs` go to the predictor."""
        dataset = data if self._preprocessor is None else self._preprocessor.transform(data)
        options = {**self._predictor_kwargs, **predict_kwargs, "keep_columns": list(keep_columns or ()) or False}
        if feature_columns is not None:
            options["feature_columns"] = feature_columns
        if num_gpus_per_worker:
            options.setdefault("use_gpu", True)
        most = max(min_scoring_workers, max_scoring_workers or min_scoring_workers)
        return dataset.map_batches(
            self._predictor_cls,
            fn_constructor_kwargs={"checkpoint": self._checkpoint, **options},
            batch_size=batch_size,
            concurrency=(min_scoring_workers, most),
            num_cpus=num_cpus_per_worker,
            num_gpus=num_gpus_per_worker,
        )


explain_module(__name__)
