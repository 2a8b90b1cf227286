"""Base class of the tree trainers: takes a train function, or arguments that declare the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from paceline.train.config import RunConfig, coerce_config
from paceline.train.driver.datasets import DataConfig
from paceline.train.trainer import DataParallelTrainer, TrainerOptions
from paceline.train.trees.training_spec import TRAIN, BoostingLibrary, BoostingLoop, BoostingSpec, make_boosting_spec


class TreesArguments(TrainerOptions, total=False):
    """The arguments that the trainers of both libraries share."""

    label_column: str | None
    params: Mapping[str, Any] | None
    num_boost_round: int | None
    callbacks: Any


class TreesTrainer(DataParallelTrainer):
    """Takes `train_loop_per_worker`, or instead `label_column`, `params` and `num_boost_round`."""

    _library: ClassVar[BoostingLibrary]

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any] | None,
        *,
        label_column: str | None = None,
        params: Mapping[str, Any] | None = None,
        num_boost_round: int | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        trainer = f"{self._library.name}Trainer"
        common = {"backend_config", *TrainerOptions.__annotations__}
        train_kwargs = {name: arguments.pop(name) for name in list(arguments) if name not in common}
        self.boosting_spec: BoostingSpec | None = None
        """What to train if no function was given."""
        declared = {"label_column": label_column, "params": params, "num_boost_round": num_boost_round, **train_kwargs}
        if train_loop_per_worker is not None:
            for name, value in declared.items():
                if value is not None:
                    raise TypeError(
                        f"{trainer} takes train_loop_per_worker or {name}, not both\n\n"
                        f"hint: pass {name} to the function in train_loop_config"
                    )
        else:
            if arguments.get("train_loop_config") is not None:
                raise TypeError(f"{trainer} takes train_loop_config only with a train_loop_per_worker")
            if all(value is None for value in declared.values()):
                raise TypeError(
                    f"{trainer} has nothing to train\n\nhint: pass a train_loop_per_worker, or "
                    "datasets={'train': ...}, label_column=, params= and num_boost_round="
                )
            arguments["run_config"] = coerce_config(RunConfig, arguments.get("run_config"), "run_config")
            self.boosting_spec = make_boosting_spec(
                self._library,
                datasets=datasets,
                label_column=label_column,
                params=params,
                num_boost_round=num_boost_round,
                train_kwargs=train_kwargs,
                checkpoint_config=arguments["run_config"].checkpoint_config,
            )
            train_loop_per_worker = BoostingLoop(self.boosting_spec, self._library)
            if dataset_config is None:
                # Train on every row. Each rank has the whole evaluation sets, so that all compute the same metrics and
                # agree on early stopping.
                dataset_config = DataConfig(datasets_to_split=[TRAIN], exact=[TRAIN])
        super().__init__(train_loop_per_worker, datasets=datasets, dataset_config=dataset_config, **arguments)

    @property
    def params(self) -> Mapping[str, Any] | None:
        """The declared parameters; None if the trainer has a function."""
        return self.boosting_spec.params if self.boosting_spec is not None else None

    def replace_arguments(self, **changes: Any) -> Self:
        spec = self.boosting_spec
        if spec is None:
            return super().replace_arguments(**changes)
        inherited = {*vars(self.trainer_arguments), self._backend_argument}
        own = {name: changes.pop(name) for name in [*changes] if name not in inherited}
        trainer = super().replace_arguments(**changes)
        declared = {name: own.pop(name, getattr(spec, name)) for name in ("label_column", "params", "num_boost_round")}
        trainer.boosting_spec = make_boosting_spec(
            self._library,
            datasets=trainer.datasets,
            train_kwargs={**spec.train_kwargs, **own},
            checkpoint_config=trainer.run_config.checkpoint_config,
            **declared,
        )
        trainer.train_loop_per_worker = BoostingLoop(trainer.boosting_spec, self._library)
        return trainer
