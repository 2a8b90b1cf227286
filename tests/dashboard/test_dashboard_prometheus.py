"""Prometheus reads what /metrics says, whatever runs and metrics are called."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from paceline._dashboard.prometheus import format_families, to_number
from paceline._view.model import Attempt, Detail, ShownCheckpoint, ShownGpu, Summary, TimeBreakdown, Value, Worker

NAMES = st.text(max_size=30)
VALUES = (
    st.floats() | st.integers(-(2**60), 2**60) | st.booleans() | st.none() | st.sampled_from(["nan", "-inf", "text"])
)


def summary(id: str = "a", metrics: dict[str, Value] | None = None) -> Summary:
    counts = {"attempt": 2, "num_reports": 7, "num_failures": 1, "num_checkpoints": 3, "steps_per_s": 2.5}
    fixed = {"path": f"/runs/{id}", "kind": "run", "state": "running", "began_at": 1.0, "updated_at": 2.0, **counts}
    return Summary(id=id, name=id, metrics=metrics or {}, **fixed)


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_a_run_is_told() -> None:
    kept = {"name": "c", "seq": 1, "attempt": 1, "path": "c", "num_bytes": 1, "status": "COMMITTED", "kept": True}
    worker = Worker(rank=3, state="running", cpu=1.5, rss_bytes=100, gpus=(ShownGpu(0, 5, 10, 0.5),))
    detail = Detail(
        summary=summary(),
        spent=TimeBreakdown(wall_s=10.0, data_s=4.0, compute_s=6.0),
        checkpoints=(ShownCheckpoint(at=90.0, **kept),),
        attempts=(Attempt(number=2, began_at=1.0, size=1, workers=(worker,)),),
    )
    metrics = {"loss": 0.5, "best": True, "word": "x", "bad": "nan"}
    found = samples(format_families([summary(metrics=metrics)], {"a": detail}, 100.0))
    one = {"run": "a"}
    assert found["paceline_run_info"] == [({**one, "name": "a", "kind": "run", "state": "running", "search": ""}, 1.0)]
    states = {labels["state"]: value for labels, value in found["paceline_run_state"]}
    assert (states.pop("running"), set(states.values())) == (1.0, {0.0})
    assert found["paceline_run_reports_total"] == [(one, 7.0)]
    assert found["paceline_run_steps_per_second"] == [(one, 2.5)]
    assert found["paceline_run_attempt"] == [(one, 2.0)]
    assert found["paceline_run_failures_total"] == [(one, 1.0)]
    assert found["paceline_run_checkpoints"] == [(one, 3.0)]
    assert found["paceline_run_last_checkpoint_age_seconds"] == [(one, 10.0)]
    assert found["paceline_worker_cpu_cores"] == [({**one, "rank": "3"}, 1.5)]
    assert found["paceline_worker_memory_bytes"] == [({**one, "rank": "3"}, 100.0)]
    assert found["paceline_worker_gpu_memory_bytes"] == [({**one, "rank": "3", "gpu": "0"}, 5.0)]
    assert found["paceline_worker_gpu_busy_ratio"] == [({**one, "rank": "3", "gpu": "0"}, 0.5)]
    assert ({**one, "where": "data"}, 4.0) in found["paceline_run_time_seconds"]
    metrics = {labels["name"]: value for labels, value in found["paceline_metric"]}
    assert (metrics["loss"], metrics["best"], "word" in metrics) == (0.5, 1.0, False)
    assert math.isnan(metrics["bad"])
    assert "paceline_run_progress_ratio" not in found


@settings(deadline=None)
@given(st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=4), max_size=4))
def test_any_name_and_value_comes_through(runs: dict[str, dict[str, Value]]) -> None:
    found = samples(format_families([summary(run, metrics) for run, metrics in runs.items()], {}, 0.0))
    told = {(labels["run"], labels["name"]): float(value) for labels, value in found.get("paceline_metric", [])}
    expected = {
        (run, name): float(number)
        for run, metrics in runs.items()
        for name, value in metrics.items()
        if (number := to_number(value)) is not None
    }
    assert told.keys() == expected.keys()
    assert all(told[key] == value or (math.isnan(value) and math.isnan(told[key])) for key, value in expected.items())
