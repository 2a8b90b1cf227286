"""How much each parameter matters for a metric, from trials that have run.

Optuna's PED-ANOVA looks at one parameter at a time: how differently are its values spread among the best quarter of the
trials than among all of them. It needs no model of the metric, and takes a second for ten thousand trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.tune.columns import Column, columns

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LEAST_TRIALS = 12
"""With fewer, the best quarter is one trial or two, and says nothing."""

_BEST = 0.25


def importances(
    rows: Sequence[tuple[Mapping[str, Any], float | None]], mode: str = "min", space: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """The share of each parameter, the largest first; they add up to 1, or are all 0 where nothing matters.

    `rows` are configurations with the value of the metric; those without a finite value are left out. A parameter that
    only some trials have is looked at among these, and counts by how many they are. Parameters that are the same in all
    trials are not in it. With fewer than 12 trials, `ValueError`.
    """
    if mode not in ("min", "max"):
        raise ValueError(f"mode={mode!r} is neither 'min' nor 'max'")
    counted = [(config, float(value)) for config, value in rows if value is not None and math.isfinite(value)]
    if len(counted) < LEAST_TRIALS:
        raise ValueError(
            f"the importance of parameters needs {LEAST_TRIALS} trials with a finite metric, and there are "
            f"{len(counted)} of {len(rows)}"
        )
    values = [value for _, value in counted]
    parameters = columns([config for config, _ in counted], space)
    raw = {column.name: _weight(column, values, mode) for column in parameters}
    total = sum(raw.values())
    shares = {name: weight / total if total > 0 else 0.0 for name, weight in raw.items()}
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def _weight(column: Column, values: Sequence[float], mode: str) -> float:
    """The importance of one parameter among the trials that have it, times their share."""
    seen = [(at, value) for at, value in zip(column.values, values, strict=True) if at is not None]
    if len(seen) < LEAST_TRIALS or len({at for at, _ in seen}) < 2:
        return 0.0
    optuna = _optuna()
    from paceline.tune.search.optuna.quiet import quiet

    with quiet():
        study = optuna.create_study(direction="minimize" if mode == "min" else "maximize")
        distribution = _distribution(optuna, column)
        study.add_trials(
            [
                optuna.trial.create_trial(params={"x": at}, distributions={"x": distribution}, value=value)
                for at, value in seen
            ]
        )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)["x"]
    return float(found) * len(seen) / len(values) if math.isfinite(found) else 0.0


def _distribution(optuna: Any, column: Column) -> BaseDistribution:
    low, high = min(column.present), max(column.present)
    made: BaseDistribution
    if column.kind == "category":
        made = optuna.distributions.CategoricalDistribution(range(len(column.categories)))
    elif column.kind == "integer":
        made = optuna.distributions.IntDistribution(low, high, log=column.log)
    else:
        made = optuna.distributions.FloatDistribution(low, high, log=column.log)
    return made


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            f'the importance of parameters needs the package optuna: {error}\n\nhint: pip install "paceline[tune]"',
            name="optuna",
        ) from error
    return optuna
