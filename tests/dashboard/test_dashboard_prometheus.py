"""Prometheus reads what /metrics says, whatever runs and metrics are called."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from paceline._dashboard.prometheus import format_families, to_number
from paceline._view.model import Attempt, RunSnapshot, ShownCheckpoint, ShownGpu, Summary, TimeBreakdown, Worker

NAMES = st.text(max_size=30)
VALUES = (
    st.floats() | st.integers(-(2**60), 2**60) | st.booleans() | st.none() | st.sampled_from(["nan", "-inf", "text"])
)


def summary(id="a", metrics=None):
    counts = {"attempt": 2, "num_reports": 7, "num_failures": 1, "num_checkpoints": 3, "steps_per_s": 2.5}
    fixed = {"path": f"/runs/{id}", "kind": "run", "state": "running", "began_at": 1.0, "updated_at": 2.0, **counts}
    return Summary(id=id, name=id, metrics=metrics or {}, **fixed)


def parse_samples(text):
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def test_a_run_is_exported():
    kept = {"name": "c", "seq": 1, "attempt": 1, "path": "c", "num_bytes": 1, "status": "COMMITTED", "kept": True}
    worker = Worker(rank=3, state="running", cpu=1.5, rss_bytes=100, gpus=(ShownGpu(0, 5, 10, 0.5),))
    detail = RunSnapshot(
        summary=summary(),
        spent=TimeBreakdown(wall_s=10.0, data_s=4.0, compute_s=6.0),
        checkpoints=(ShownCheckpoint(at=90.0, **kept),),
        attempts=(Attempt(number=2, began_at=1.0, size=1, workers=(worker,)),),
    )
    metrics = {"loss": 0.5, "best": True, "word": "x", "bad": "nan"}
    samples = parse_samples(format_families([summary(metrics=metrics)], {"a": detail}, 100.0))
    labels = {"run": "a"}
    assert samples["paceline_run_info"] == [
        ({**labels, "name": "a", "kind": "run", "state": "running", "search": ""}, 1.0)
    ]
    states = {each["state"]: value for each, value in samples["paceline_run_state"]}
    assert (states.pop("running"), set(states.values())) == (1.0, {0.0})
    assert samples["paceline_run_reports_total"] == [(labels, 7.0)]
    assert samples["paceline_run_steps_per_second"] == [(labels, 2.5)]
    assert samples["paceline_run_attempt"] == [(labels, 2.0)]
    assert samples["paceline_run_failures_total"] == [(labels, 1.0)]
    assert samples["paceline_run_checkpoints"] == [(labels, 3.0)]
    assert samples["paceline_run_last_checkpoint_age_seconds"] == [(labels, 10.0)]
    assert samples["paceline_worker_cpu_cores"] == [({**labels, "rank": "3"}, 1.5)]
    assert samples["paceline_worker_memory_bytes"] == [({**labels, "rank": "3"}, 100.0)]
    assert samples["paceline_worker_gpu_memory_bytes"] == [({**labels, "rank": "3", "gpu": "0"}, 5.0)]
    assert samples["paceline_worker_gpu_busy_ratio"] == [({**labels, "rank": "3", "gpu": "0"}, 0.5)]
    assert ({**labels, "where": "data"}, 4.0) in samples["paceline_run_time_seconds"]
    metrics = {each["name"]: value for each, value in samples["paceline_metric"]}
    assert (metrics["loss"], metrics["best"], "word" in metrics) == (0.5, 1.0, False)
    assert math.isnan(metrics["bad"])
    assert "paceline_run_progress_ratio" not in samples


@settings(deadline=None)
@given(st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=4), max_size=4))
def test_any_name_and_value_is_exported(runs):
    samples = parse_samples(format_families([summary(run, metrics) for run, metrics in runs.items()], {}, 0.0))
    text = {(labels["run"], labels["name"]): float(value) for labels, value in samples.get("paceline_metric", [])}
    expected = {
        (run, name): float(number)
        for run, metrics in runs.items()
        for name, value in metrics.items()
        if (number := to_number(value)) is not None
    }
    assert text.keys() == expected.keys()
    assert all(text[key] == value or (math.isnan(value) and math.isnan(text[key])) for key, value in expected.items())
