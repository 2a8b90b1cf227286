"""What a report callback of either library decides: which metrics, under which names, with a model or without."""

import pytest

from paceline.train.trees.reports import make_report_plan

FOUND = {"train-auc": 0.9, "valid-auc": 0.8}


def plan(metrics=None, filename="model.txt", frequency=0, checkpoint_at_end=True, results_postprocessing_fn=None):
    return make_report_plan(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (None, FOUND),
        ("valid-auc", {"valid-auc": 0.8}),
        ({"score": "valid-auc"}, {"score": 0.8}),
        ([], {}),
    ],
)
def test_metrics_are_chosen_and_named(metrics, told):
    assert plan(metrics).select_metrics(FOUND) == told


def test_what_is_reported_is_what_the_functions_of_the_caller_makes_of_it():
    made = plan(["valid-auc"], results_postprocessing_fn=lambda told: {"error": 1 - told["valid-auc"]}).select_metrics(
        FOUND
    )
    assert made == {"error": pytest.approx(0.2)}
    with pytest.raises(TypeError, match="results_postprocessing_fn returned 3"):
        plan(results_postprocessing_fn=lambda _: 3).select_metrics(FOUND)
    with pytest.raises(KeyError, match="'valid-loss', which was not evaluated; there are: 'train-auc', 'valid-auc'"):
        plan({"loss": "valid-loss"}).select_metrics(FOUND)


@pytest.mark.parametrize(
    ("frequency", "at_end", "kept"),
    [(0, True, [5]), (0, False, []), (2, True, [2, 4, 5]), (2, False, [2, 4]), (1, False, [1, 2, 3, 4, 5])],
)
def test_the_model_is_kept_every_so_many_rounds_and_at_the_end(frequency, at_end, kept):
    chosen = plan(frequency=frequency, checkpoint_at_end=at_end)
    assert [n for n in range(1, 6) if chosen.should_checkpoint(n, last=n == 5)] == kept


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"metrics": [3]}, r"metrics=\[3\]"),
        ({"metrics": {"a": 1}}, "metrics={'a': 1}"),
        ({"filename": "a/b"}, "filename='a/b'"),
        ({"filename": ".manifest.json"}, "filename='.manifest.json'"),
        ({"frequency": True}, "frequency=True"),
        ({"results_postprocessing_fn": 3}, "results_postprocessing_fn=3"),
    ],
)
def test_a_wrong_argument_of_a_callback_is_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        plan(**arguments)
