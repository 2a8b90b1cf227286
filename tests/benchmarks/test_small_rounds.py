"""Every kind of benchmark still runs: small rounds, whose numbers mean nothing."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SMALL = {
    "data_tabular": "--rows 20000 --files 3",
    "data_images": "--rows 34 --files 2",
    "data_shuffle": "--rows 20000 --files 2",
    "data_join": "--rows 20000 --files 2",
    "data_tokens": "--documents 400",
    "data_queries": "--rows 20000 --files 2",
    "data_resume": "--rows 130000 --files 2 --times 1 --pause-s 0",
    "data_wait": "--steps 4 --step-ms 1",
    "data_memory": "--files 1 --step-ms 0 --times 2",
    "data_spill": "--megabytes 4",
    "growth_workers": "--workers 2 --no-cold --fits 3 --reports 40 --without torchrun",
    "ddp_overhead": "--steps 50 --without torchrun accelerate lightning",
    "growth_dataset": "--times 2 --peer-times 2 --file-rows 1500",
    "growth_journal": "--reports 100",
    "scale": "--workers 100 4000 --seconds 12 --events 20000 --save-every 10",
    "tune_decisions": "--trials 300 --reports 1500",
    "tune_trials": "--trials 2 --many 3",
    "cluster_noop": "",
    "cluster_report": "--reports 20",
    "cluster_recovery": "",
    "cluster_crowd": "--nodes 2 --workers 2 --seconds 5 --reports 8",
    "cluster_data": "--rows 20000 --files 2",
}
MARKS = {
    "tune_decisions": (),
    **dict.fromkeys(("cluster_noop", "cluster_report", "cluster_crowd", "cluster_data"), pytest.mark.chaos),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, pytest.mark.slow)) for name in SMALL])
@pytest.mark.timeout(600)
def test_a_small_round_gives_a_number_for_everything_it_measures(name: str, tmp_path: Path) -> None:
    environ = dict(os.environ)
    if name.startswith("cluster_"):
        if importlib.util.find_spec("ray") is None:  # Not imported here: it changes the environment.
            pytest.skip("Ray is not installed: the cluster's benchmarks were not tried")
        # Ray's own processes outlive the driver for a while; the benchmark itself fails if workers of ours stay.
        del environ["PACELINE_TEST_SESSION"]
    results = tmp_path / "results.json"
    options = ["--repeats", "1", "--no-ray", "--storage", str(tmp_path), "--json", str(results), *SMALL[name].split()]
    with (tmp_path / "printed").open("w+") as printed:
        command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options]
        ended = subprocess.run(command, stdout=printed, stderr=printed, timeout=580, env=environ)
    assert ended.returncode == 0, (tmp_path / "printed").read_text()
    document = json.loads(results.read_text())
    assert document["measures"] or document["curves"]
    for measure in document["measures"]:
        assert measure["ours"]["samples"]
        has_absolute_bar = measure["bar"] is not None and not measure["bar"]["ratio"]
        assert measure["met"] is None or measure["bar"] is not None
        assert measure["met"] is not None or not has_absolute_bar, "a ratio is judged only beside its peer"
    for curve in document["curves"]:
        assert curve["ours"], curve["name"]
        assert all(point["median"] > 0 for point in curve["ours"]), curve["name"]
    if name == "scale":
        _, growth = document["measures"]
        assert growth["ours"]["median"] < 15, "it would be 40 if an event cost more the more workers there are"
