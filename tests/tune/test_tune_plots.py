"""What the plots of a search show, which parameters matter, and that both can be had for any search."""

import json
import math
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._core.arguments import flatten_dict
from paceline.tune.importance import LEAST_TRIALS, importances
from paceline.tune.plots import PlottedTrial, curves, importance, parallel_coordinates, plot
from paceline.tune.results.parameter_columns import extract_columns, shorten_middle
from paceline.tune.space import domains as tune

pytest.importorskip("optuna")
mpl = pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n"


def searched(trials=30, seed=0):
    chance = random.Random(seed)
    made = []
    for number in range(trials):
        config = {"lr": 10 ** chance.uniform(-5, -1), "opt": chance.choice(["adam", "sgd"]), "seed": 3}
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


def lines_of(axes):
    """How many lines of each group there are."""
    return {shown.get_gid(): len(shown.get_segments()) for shown in axes.collections if shown.get_gid() is not None}


def draw(figure, path):
    figure.savefig(path, dpi=50)
    return path.read_bytes()


def test_parallel_coordinates_are_one_line_for_a_trial_and_one_axis_for_a_parameter():
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


def test_the_domains_of_the_space_say_what_is_logarithmic():
    trials = [PlottedTrial(str(x), {"x": x, "in": {"y": x}}, value=x) for x in (1.0, 2.0, 8.0)]
    space = {"x": tune.loguniform(1, 10), "in": tune.choice([{"y": tune.loguniform(1, 10)}, {"z": 1}])}
    data = parallel_coordinates(trials, space=space)
    assert [axis["log"] for axis in data["axes"]] == [True, True, False]
    assert [line["points"][0] for line in data["lines"]] == pytest.approx([0, 1 / 3, 1])
    assert [axis["log"] for axis in parallel_coordinates(trials)["axes"]] == [False, False, False]


def test_the_axes_can_be_chosen_and_what_cannot_be_drawn_is_refused_by_name():
    data = parallel_coordinates(searched(), parameters=["opt", "lr"])
    assert [axis["name"] for axis in data["axes"]] == ["opt", "lr", "value"]
    with pytest.raises(ValueError, match=r"unknown name 'seed' in parameters; those that differ .* are lr, opt"):
        parallel_coordinates(searched(), parameters=["seed"])
    with pytest.raises(ValueError, match="kind must be 'all', 'parallel', 'importance' or 'curves', got 'pie'"):
        plot(searched(3), kind="pie")
    with pytest.raises(ValueError, match="mode must be 'min' or 'max', got 'least'"):
        plot(searched(3), mode="least")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    for package, call in (("optuna", lambda: importances(rows(20))), ("matplotlib", lambda: plot([]))):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(
            ImportError, match=rf'needs {package}, which is not.*\n\nhint: pip install "paceline\[tune\]'
        ):
            call()


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_value_far_off_leaves_room_for_the_others(mode):
    sign = 1 if mode == "min" else -1
    values = [sign * float(value) for value in (*range(1, 31), 10**9)]
    axis = parallel_coordinates([PlottedTrial(str(v), {"x": v}, value=v) for v in values], mode=mode)["axes"][-1]
    assert axis["is_cut"]
    assert {abs(axis["low"]), abs(axis["high"])} <= {1, *range(25, 31)}


def test_curves_are_the_reports_of_each_trial_and_one_that_had_all_the_time_was_not_stopped_early():
    data = curves([*searched(2), *ODD], "loss", "min")
    assert [len(line["points"]) for line in data["lines"]] == [10, 10, 3, 1, 1, 0]
    assert data["lines"][2]["points"] == [[1, 2.0], [2, None], [3, 1.0]]
    trials = [
        PlottedTrial("full", {"x": 1}, [(1, 2.0), (9, 1.0)], 1.0, "STOPPED"),
        PlottedTrial("early", {"x": 2}, [(1, 2.0), (3, 1.5)], 1.5, "STOPPED"),
    ]
    for data in (curves(trials), parallel_coordinates(trials)):
        assert [line["status"] for line in data["lines"]] == ["TERMINATED", "STOPPED"]


def test_importance_says_why_there_is_none():
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
def test_the_data_of_any_search_is_json_with_points_on_its_axes(trials, mode):
    data = [parallel_coordinates(trials, mode=mode), curves(trials, mode=mode), importance(trials, mode=mode)]
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    for line in data[0]["lines"]:
        assert len(line["points"]) == len(data[0]["axes"])
        assert all(point is None or 0 <= point <= 1 for point in line["points"])


def test_the_figure_has_a_line_for_each_trial_and_the_best_one_apart(tmp_path):
    backend, has_pyplot = mpl.rcParams._get_backend_or_none(), "matplotlib.pyplot" in sys.modules
    figure = plot([*searched(), *ODD], metric="loss", mode="min")
    parallel, color_bar, curve, bars = figure.axes
    assert color_bar.get_ylabel() == "loss"
    assert lines_of(parallel) == {"odd": 4, "stopped": 10, "whole": 19, "best": 1}
    assert lines_of(curve) == {"odd": 3, "stopped": 10, "whole": 19, "best": 1}
    assert [label.get_text() for label in parallel.get_xticklabels()] == ["lr", "opt", "sgd/momentum", "loss"]
    assert bars.get_yticklabels()[0].get_text() == "lr"
    assert len(bars.patches) == 3
    assert "best: trial" in parallel.get_legend().get_texts()[0].get_text()
    assert draw(figure, tmp_path / "all.png").startswith(PNG)
    assert figure._repr_png_().startswith(PNG)
    # Pyplot and the backend are left alone.
    assert (mpl.rcParams._get_backend_or_none(), "matplotlib.pyplot" in sys.modules) == (backend, has_pyplot)
    assert getattr(figure, "number", None) is None


EXTREME = [1.7e308, -1.7e308, 5e-324, 1e-300, 0.0, 1e99, -1e99]
DRAWN = {"none": [], "odd": ODD, "some": searched(20)}
DRAWN["extreme"] = [PlottedTrial(str(x), {"x": x}, [(1, x), (2, -x)], x) for x in EXTREME]


@pytest.mark.parametrize("kind", ["parallel", "importance", "curves"])
@pytest.mark.parametrize(
    ("trials", "mode"),
    [
        *((trials, "max") for trials in ("none", "odd", "some")),
        *(pytest.param("extreme", mode, marks=pytest.mark.slow) for mode in ("max", "min")),
    ],
)
def test_each_kind_is_drawn_by_itself(kind, trials, mode, tmp_path):
    assert draw(plot(DRAWN[trials], kind=kind, mode=mode), tmp_path / "one.png").startswith(PNG)


HOSTILE = ["$x^{$", "$\\frac{1}{$", "$", "_$_", "a" * 300, "new\nline\t", "", "\\", "%s{0}", "\ud800", "\x00", "a/b/c"]


def test_names_are_written_as_they_are(tmp_path):
    trials = [
        PlottedTrial(f"$\\{number}_$", {name: f"{name}{number % 2}" for name in HOSTILE}, [(1, 1.0)], 1.0 + number)
        for number in range(14)
    ]
    figure = plot(trials, metric="$\\loss_{$", mode="min")
    assert draw(figure, tmp_path / "hostile.png").startswith(PNG)
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert names[0] == "$x^{$"
    assert max(map(len, names)) < 30


def test_a_thousand_trials_are_drawn_faintly(tmp_path):
    trials = searched(1000)
    figure = plot(trials, kind="parallel")
    assert lines_of(figure.axes[0]) == {"stopped": 333, "whole": 666, "best": 1}
    alphas = {shown.get_gid(): shown.get_alpha() for shown in figure.axes[0].collections}
    widths = {shown.get_gid(): shown.get_linewidths()[0] for shown in figure.axes[0].collections}
    assert alphas["stopped"] < alphas["whole"] < 0.2 < alphas["best"]
    assert widths["stopped"] < widths["whole"] < widths["best"]
    assert draw(figure, tmp_path / "many.png").startswith(PNG)


def rows(trials=120):
    return [(trial.config, trial.value) for trial in searched(trials)]


def test_what_matters_comes_first_and_the_mode_says_which_end_is_the_best():
    found = importances(rows())
    assert {*found} == {"lr", "opt", "sgd/momentum"}
    assert next(iter(found)) == "lr"
    assert found["lr"] > 0.5
    assert found["opt"] < 0.1
    assert sum(found.values()) == pytest.approx(1)
    chance = random.Random(1)
    made = [({"low": chance.random(), "high": chance.random()}, 0.0) for _ in range(200)]
    # The least values lie where `low` is small, the largest where `high` is large.
    judged = [(config, -10 * (config["high"] > 0.8) + 10 * (config["low"] > 0.2)) for config, _ in made]
    judged = [(config, value + chance.random() / 100) for config, value in judged]
    assert next(iter(importances(judged, "min"))) == "high"
    assert next(iter(importances([(c, -v) for c, v in judged], "max"))) == "high"


def test_options_of_any_kind_are_compared_and_too_few_trials_are_said_to_be():
    chance = random.Random(2)
    made = [{"act": chance.choice([math.sin, math.cos, None]), "on": chance.choice([True, False])} for _ in range(80)]
    found = importances([(config, (config["act"] is math.cos) + chance.random() / 10) for config in made], "max")
    assert [*found] == ["act", "on"]
    assert found["act"] > 0.9
    with pytest.raises(ValueError, match=f"needs {LEAST_TRIALS} trials with a finite metric, got 3 of 5"):
        importances([*rows(3), ({"lr": 1.0}, None), ({"lr": 2.0}, math.nan)])
    with pytest.raises(ValueError, match="mode must be 'min' or 'max', got 'least'"):
        importances(rows(20), "least")


CONFIGS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), min_size=1, max_size=40)


@settings(max_examples=30, deadline=None)
@given(CONFIGS, st.data())
def test_any_configurations_have_columns_and_importances(configs, data):
    found = extract_columns(configs)
    for column in found:
        assert len(column.values) == len(configs)
        assert [value is None for value in column.values] == [column.name not in flatten_dict(c) for c in configs]
        if column.kind == "category":
            assert {*column.present_values} == {*range(len(column.categories))}
    values = data.draw(st.lists(st.floats(), min_size=len(configs), max_size=len(configs)))
    if sum(map(math.isfinite, values)) >= LEAST_TRIALS:
        shares = importances([*zip(configs, values, strict=True)])
        assert all(0 <= share <= 1.000001 for share in shares.values())


@given(st.text(max_size=200), st.integers(3, 60))
def test_a_name_is_made_to_fit_on_a_line(text, length):
    fitting = shorten_middle(text, length)
    assert len(fitting) <= length
    assert fitting.isprintable()


def test_a_grid_has_a_log_scale_by_its_values_and_an_interval_as_it_is_searched():
    values = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]
    configs = [{"grid": value, "linear": value, "log": value} for value in values]
    space = {"grid": tune.grid_search(values), "linear": tune.uniform(0, 1), "log": tune.loguniform(1e-4, 1)}
    assert [each.log for each in extract_columns(configs, space)] == [True, False, True]
