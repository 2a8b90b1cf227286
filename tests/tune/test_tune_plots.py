"""What the plots of a search show, and that they can be drawn for any search."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tune import space as tune
from paceline.tune.plots import PlottedTrial, curves, importance, parallel_coordinates, plot

pytest.importorskip("optuna")
mpl = pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n"


def searched(trials: int = 30, seed: int = 0) -> list[PlottedTrial]:
    chance = random.Random(seed)
    made = []
    for number in range(trials):
        config: dict[str, Any] = {"lr": 10 ** chance.uniform(-5, -1), "opt": chance.choice(["adam", "sgd"]), "seed": 3}
        if config["opt"] == "sgd":
            config["sgd"] = {"momentum": chance.random()}
        final = abs(math.log10(config["lr"]) + 3)
        stopped = number % 3 == 2
        history = [(step, final + 1 / step) for step in range(1, 4 if stopped else 11)]
        status = "STOPPED" if stopped else "TERMINATED"
        made.append(PlottedTrial(f"{number:05}", config, history, history[-1][1], status))
    return made


ODD = [
    PlottedTrial("nan", {"lr": 1e-3, "opt": "adam", "seed": 3}, [(1, 2.0), (2, math.nan), (3, 1.0)], math.nan),
    PlottedTrial("infinite", {"lr": 1e-2, "opt": "sgd", "seed": 3}, [(1, math.inf)], math.inf),
    PlottedTrial("failed", {"lr": 1e-2, "opt": "sgd", "seed": 3}, [(1, 1.0)], 1.0, "ERROR"),
    PlottedTrial("silent", {"lr": 1e-2, "opt": "sgd", "seed": 3}, [], None, "PENDING"),
]


def lines_of(axes: Any) -> dict[str, int]:
    """How many lines of each group there are."""
    return {shown.get_gid(): len(shown.get_segments()) for shown in axes.collections if shown.get_gid() is not None}


def drawn(figure: Any, path: Path) -> bytes:
    figure.savefig(path, dpi=50)
    return path.read_bytes()


def test_parallel_coordinates_are_one_line_for_a_trial_and_one_axis_for_a_parameter() -> None:
    trials = [*searched(), *ODD]
    data = parallel_coordinates(trials, "loss", "min")
    assert [axis["name"] for axis in data["axes"]] == ["lr", "opt", "sgd/momentum", "loss"]
    assert [axis["kind"] for axis in data["axes"]] == ["float", "category", "float", "float"]
    assert [axis["log"] for axis in data["axes"]] == [True, False, False, False]
    assert [axis["has_gaps"] for axis in data["axes"]] == [False, False, True, True]
    assert data["axes"][1]["categories"] == ["adam", "sgd"]
    assert [line["trial_id"] for line in data["lines"]] == [trial.trial_id for trial in trials]
    assert data["best"] == min(searched(), key=lambda trial: trial.value or 0).trial_id
    for trial, line in zip(trials, data["lines"], strict=True):
        assert (line["points"][2] is None) == ("sgd" not in trial.config)
        assert (line["value"] is None) == (trial.value is None or not math.isfinite(trial.value))
    by_lr = sorted(zip([trial.config["lr"] for trial in trials], data["lines"], strict=True), key=lambda pair: pair[0])
    places = [line["points"][0] for _, line in by_lr]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 1)


def test_the_domains_of_the_space_say_what_is_logarithmic() -> None:
    trials = [PlottedTrial(str(x), {"x": x, "in": {"y": x}}, value=x) for x in (1.0, 2.0, 8.0)]
    space = {"x": tune.loguniform(1, 10), "in": tune.choice([{"y": tune.loguniform(1, 10)}, {"z": 1}])}
    data = parallel_coordinates(trials, space=space)
    assert [axis["log"] for axis in data["axes"]] == [True, True, False]
    assert [line["points"][0] for line in data["lines"]] == pytest.approx([0, 1 / 3, 1])
    assert [axis["log"] for axis in parallel_coordinates(trials)["axes"]] == [False, False, False]


def test_the_axes_can_be_chosen() -> None:
    data = parallel_coordinates(searched(), parameters=["opt", "lr"])
    assert [axis["name"] for axis in data["axes"]] == ["opt", "lr", "value"]
    with pytest.raises(ValueError, match=r"parameters has 'seed', which is not one that differs(.|\n)*lr, opt"):
        parallel_coordinates(searched(), parameters=["seed"])


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_value_far_off_leaves_room_for_the_others(mode: str) -> None:
    sign = 1 if mode == "min" else -1
    values = [sign * float(value) for value in (*range(1, 31), 10**9)]
    axis = parallel_coordinates([PlottedTrial(str(v), {"x": v}, value=v) for v in values], mode=mode)["axes"][-1]
    assert axis["is_cut"]
    assert {abs(axis["low"]), abs(axis["high"])} <= {1, *range(25, 31)}


def test_the_best_is_the_first_of_equals_and_none_where_there_is_no_number() -> None:
    equal = [PlottedTrial("b", {}, value=1.0), PlottedTrial("a", {}, value=1.0), PlottedTrial("c", {}, value=0.5)]
    assert parallel_coordinates(equal, mode="max")["best"] == "b"
    assert parallel_coordinates(equal, mode="min")["best"] == "c"
    assert curves(ODD[:2])["best"] is None


def test_curves_are_the_reports_of_each_trial() -> None:
    data = curves([*searched(2), *ODD], "loss", "min")
    assert [len(line["points"]) for line in data["lines"]] == [10, 10, 3, 1, 1, 0]
    assert data["lines"][2]["points"] == [[1, 2.0], [2, None], [3, 1.0]]


def test_a_trial_that_had_all_the_time_there_is_was_not_stopped_early() -> None:
    trials = [
        PlottedTrial("full", {"x": 1}, [(1, 2.0), (9, 1.0)], 1.0, "STOPPED"),
        PlottedTrial("early", {"x": 2}, [(1, 2.0), (3, 1.5)], 1.5, "STOPPED"),
    ]
    for data in (curves(trials), parallel_coordinates(trials)):
        assert [line["status"] for line in data["lines"]] == ["TERMINATED", "STOPPED"]


def test_importance_says_why_there_is_none() -> None:
    assert importance(searched(60))["parameters"][0]["name"] == "lr"
    assert "needs 12 trials" in importance(searched(3))["note"]
    same = [PlottedTrial(str(number), {"x": 1}, value=float(number)) for number in range(20)]
    assert importance(same)["note"] == "no parameter differs among the trials"
    equal = [PlottedTrial(str(number), {"x": number}, value=1.0) for number in range(20)]
    assert importance(equal)["note"] == "no parameter makes a difference"


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just(len))
TRIALS = st.lists(
    st.builds(
        PlottedTrial,
        st.text(max_size=4),
        st.dictionaries(st.text(max_size=3), st.one_of(VALUES, st.dictionaries(st.text(max_size=2), VALUES))),
        st.lists(st.tuples(st.integers(0, 100), st.floats()), max_size=3),
        st.one_of(st.none(), st.floats()),
        st.sampled_from(["TERMINATED", "STOPPED", "ERROR", "RUNNING"]),
    ),
    max_size=6,
    unique_by=lambda trial: trial.trial_id,
)


@settings(max_examples=60, deadline=None)
@given(TRIALS, st.sampled_from(["min", "max"]))
def test_the_data_of_any_search_is_json_with_points_on_its_axes(trials: list[PlottedTrial], mode: str) -> None:
    data = [parallel_coordinates(trials, mode=mode), curves(trials, mode=mode), importance(trials, mode=mode)]
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    for line in data[0]["lines"]:
        assert len(line["points"]) == len(data[0]["axes"])
        assert all(point is None or 0 <= point <= 1 for point in line["points"])


def test_the_figure_has_a_line_for_each_trial_and_the_best_one_apart(tmp_path: Path) -> None:
    trials = [*searched(), *ODD]
    figure = plot(trials, metric="loss", mode="min")
    parallel, color_bar, curve, bars = figure.axes
    assert color_bar.get_ylabel() == "loss"
    assert lines_of(parallel) == {"odd": 4, "stopped": 10, "whole": 19, "best": 1}
    assert lines_of(curve) == {"odd": 3, "stopped": 10, "whole": 19, "best": 1}
    assert [label.get_text() for label in parallel.get_xticklabels()] == ["lr", "opt", "sgd/momentum", "loss"]
    assert bars.get_yticklabels()[0].get_text() == "lr"
    assert len(bars.patches) == 3
    assert "best: trial" in parallel.get_legend().get_texts()[0].get_text()
    assert drawn(figure, tmp_path / "all.png").startswith(PNG)


@pytest.mark.parametrize("kind", ["parallel", "importance", "curves"])
@pytest.mark.parametrize("trials", [[], ODD, searched(1), searched(20)], ids=["none", "odd", "one", "some"])
def test_each_kind_is_drawn_by_itself(kind: Any, trials: Sequence[PlottedTrial], tmp_path: Path) -> None:
    figure = plot(trials, kind=kind, mode="max")
    assert drawn(figure, tmp_path / "one.png").startswith(PNG)


EXTREME = [1.7e308, -1.7e308, 5e-324, 1e-300, 0.0, 1e99, -1e99]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_largest_and_the_smallest_numbers_are_drawn(mode: str, tmp_path: Path) -> None:
    trials = [PlottedTrial(str(x), {"x": x}, [(1, x), (2, -x)], x) for x in EXTREME]
    assert drawn(plot(trials, kind="parallel", mode=mode), tmp_path / "a.png").startswith(PNG)
    assert drawn(plot(trials, kind="curves", mode=mode), tmp_path / "b.png").startswith(PNG)


HOSTILE = ["$x^{$", "$\\frac{1}{$", "$", "_$_", "a" * 300, "new\nline\t", "", "\\", "%s{0}", "\ud800", "\x00", "a/b/c"]


def test_names_are_written_as_they_are(tmp_path: Path) -> None:
    trials = [
        PlottedTrial(f"$\\{number}_$", {name: f"{name}{number % 2}" for name in HOSTILE}, [(1, 1.0)], 1.0 + number)
        for number in range(14)
    ]
    figure = plot(trials, metric="$\\loss_{$", mode="min")
    assert drawn(figure, tmp_path / "hostile.png").startswith(PNG)
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert names[0] == "$x^{$"
    assert max(map(len, names)) < 30


def test_a_thousand_trials_are_drawn_faintly(tmp_path: Path) -> None:
    trials = searched(1000)
    figure = plot(trials, kind="parallel")
    assert lines_of(figure.axes[0]) == {"stopped": 333, "whole": 666, "best": 1}
    alphas = {shown.get_gid(): shown.get_alpha() for shown in figure.axes[0].collections}
    widths = {shown.get_gid(): shown.get_linewidths()[0] for shown in figure.axes[0].collections}
    assert alphas["stopped"] < alphas["whole"] < 0.2 < alphas["best"]
    assert widths["stopped"] < widths["whole"] < widths["best"]
    assert drawn(figure, tmp_path / "many.png").startswith(PNG)


def test_pyplot_and_the_backend_are_left_alone() -> None:
    backend = mpl.rcParams._get_backend_or_none()
    before = "matplotlib.pyplot" in sys.modules
    figure = plot(searched(14), metric="loss")
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert mpl.rcParams._get_backend_or_none() == backend
    assert figure._repr_png_().startswith(PNG)  # type: ignore[attr-defined]
    if before:
        assert getattr(figure, "number", None) is None


def test_what_cannot_be_drawn_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="kind='pie' is not one of 'all', 'parallel', 'importance', 'curves'"):
        plot(searched(3), kind="pie")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode='least' is neither"):
        plot(searched(3), mode="least")
