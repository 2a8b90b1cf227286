"""Estimates how much each parameter matters for a metric, from completed trials.

Optuna's PED-ANOVA looks at one parameter at a time: how much the distribution of its values among the best quarter of
the trials differs from that among all of them. It takes a second for ten thousand trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline._core.arguments import check_choice
from paceline._core.lazy_imports import import_extra
from paceline.tune.results.parameter_columns import ParameterColumn, extract_columns

LEAST_TRIALS = 12
"""With fewer, the best quarter is one or two trials, which says nothing."""

_BEST = 0.25


def importances(
    rows: Sequence[tuple[Mapping[str, Any], float | None]], mode: str = "min", space: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """The importance of each parameter, largest first; they add up to 1, or are all 0 if no parameter matters.

    `rows` are configurations with the value of the metric; rows without a finite value are ignored. A parameter that
    only some trials have is evaluated among those trials and weighted by their share. Parameters with the same value in
    all trials are omitted. Raises `ValueError` with fewer than 12 trials.
    """
    check_choice("mode", mode, ("min", "max"))
    counted = [(config, float(value)) for config, value in rows if value is not None and math.isfinite(value)]
    if len(counted) < LEAST_TRIALS:
        raise ValueError(
            f"the importance of parameters needs {LEAST_TRIALS} trials with a finite metric, got {len(counted)} of "
            f"{len(rows)}"
        )
    values = [value for _, value in counted]
    parameters = extract_columns([config for config, _ in counted], space)
    raw = {column.name: _weighted_importance(column, values, mode) for column in parameters}
    total = sum(raw.values())
    shares = {name: weight / total if total > 0 else 0.0 for name, weight in raw.items()}
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def _weighted_importance(column: ParameterColumn, values: Sequence[float], mode: str) -> float:
    """The importance of one parameter among the trials that have it, times their share of all trials."""
    present = [(at, value) for at, value in zip(column.values, values, strict=True) if at is not None]
    if len(present) < LEAST_TRIALS or len({at for at, _ in present}) < 2:
        return 0.0
    optuna = import_extra("optuna", "the importance of parameters")
    from paceline.tune.search.optuna.samplers import silence_optuna

    with silence_optuna():
        study = optuna.create_study(direction="minimize" if mode == "min" else "maximize")
        distributions = {"x": _to_distribution(optuna, column)}
        for at, value in present:
            study.add_trial(optuna.trial.create_trial(params={"x": at}, distributions=distributions, value=value))
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST)
        share = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)["x"]
    return float(share) * len(present) / len(values) if math.isfinite(share) else 0.0


def _to_distribution(optuna: Any, column: ParameterColumn) -> Any:
    distributions = optuna.distributions
    if column.kind == "category":
        return distributions.CategoricalDistribution(range(len(column.categories)))
    kind = distributions.IntDistribution if column.kind == "integer" else distributions.FloatDistribution
    return kind(min(column.present_values), max(column.present_values), log=column.log)
