"""Which parameters matter, and which columns configurations have."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tune import space as tune
from paceline.tune.columns import columns, flattened, shortened
from paceline.tune.importance import LEAST_TRIALS, importances

pytest.importorskip("optuna")


def rows(trials: int = 120, seed: int = 0) -> list[tuple[dict[str, Any], float]]:
    chance = random.Random(seed)
    made = []
    for _ in range(trials):
        config: dict[str, Any] = {
            "lr": 10 ** chance.uniform(-6, 0),
            "idle": chance.random(),
            "opt": {"kind": chance.choice(["adam", "sgd"])},
            "fixed": 7,
        }
        value = (math.log10(config["lr"]) + 4) ** 2
        if config["opt"]["kind"] == "sgd":
            config["opt"]["momentum"] = chance.random()
            value += 2 * config["opt"]["momentum"]
        made.append((config, value))
    return made


def test_what_matters_comes_first_and_shares_add_up_to_one() -> None:
    found = importances(rows())
    assert {*found} == {"lr", "idle", "opt/kind", "opt/momentum"}
    assert next(iter(found)) == "lr"
    assert found["lr"] > 0.5
    assert found["idle"] < 0.1
    assert sum(found.values()) == pytest.approx(1)


def test_the_mode_says_which_end_is_the_best() -> None:
    chance = random.Random(1)
    made = [({"low": chance.random(), "high": chance.random()}, 0.0) for _ in range(200)]
    # The least values lie where `low` is small, the largest where `high` is large.
    judged = [(config, -10 * (config["high"] > 0.8) + 10 * (config["low"] > 0.2)) for config, _ in made]
    judged = [(config, value + chance.random() / 100) for config, value in judged]
    assert next(iter(importances(judged, "min"))) == "high"
    assert next(iter(importances([(c, -v) for c, v in judged], "max"))) == "high"


def test_categories_and_options_of_any_kind_are_compared() -> None:
    chance = random.Random(2)
    made = [{"act": chance.choice([math.sin, math.cos, None]), "on": chance.choice([True, False])} for _ in range(80)]
    found = importances([(config, (config["act"] is math.cos) + chance.random() / 10) for config in made], "max")
    assert [*found] == ["act", "on"]
    assert found["act"] > 0.9


def test_a_logarithmic_domain_is_looked_at_by_magnitude() -> None:
    (column,) = columns([{"x": 1.0}, {"x": 20.0}], {"x": tune.loguniform(1, 100)})
    assert column.log
    (column,) = columns([{"x": 1.0}, {"x": 20.0}])
    assert not column.log


def test_too_few_trials_are_said_to_be() -> None:
    with pytest.raises(ValueError, match=f"needs {LEAST_TRIALS} trials with a finite metric, and there are 3 of 5"):
        importances([*rows(3), ({"lr": 1.0}, None), ({"lr": 2.0}, math.nan)])
    with pytest.raises(ValueError, match="mode='least' is neither 'min' nor 'max'"):
        importances(rows(20), "least")


def test_without_a_difference_nothing_matters() -> None:
    assert {*importances([(config, 1.0) for config, _ in rows(20)]).values()} == {0.0}
    assert importances([({"x": 1}, float(number)) for number in range(20)]) == {}


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(len))
CONFIGS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), min_size=1, max_size=40)


@settings(max_examples=30, deadline=None)
@given(CONFIGS, st.data())
def test_any_configurations_have_columns_and_importances(configs: list[dict[str, Any]], data: st.DataObject) -> None:
    found = columns(configs)
    for column in found:
        assert len(column.values) == len(configs)
        assert [value is None for value in column.values] == [column.name not in flattened(c) for c in configs]
        if column.kind == "category":
            assert {*column.present} == {*range(len(column.categories))}
    values = data.draw(st.lists(st.floats(), min_size=len(configs), max_size=len(configs)))
    if sum(map(math.isfinite, values)) >= LEAST_TRIALS:
        shares = importances([*zip(configs, values, strict=True)])
        assert all(0 <= share <= 1.000001 for share in shares.values())


@given(st.text(max_size=200), st.integers(3, 60))
def test_a_name_is_made_to_fit_on_a_line(text: str, length: int) -> None:
    fitting = shortened(text, length)
    assert len(fitting) <= length
    assert fitting.isprintable()
