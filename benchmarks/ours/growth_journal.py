"""One look at a run, or its continuation. Arguments: `continue`, `from_path`, `dataframe` or `bytes`, the run, a file.

Into the file goes how long it took, processor time and the peak of memory; for `continue` also what a report cost.
"""

import json
import resource
import statistics
import sys
import time
from pathlib import Path

from paceline import train
from paceline.train import Result, RunConfig
from paceline.train.data_parallel_trainer import DataParallelTrainer

REPORTS = 20_000


def train_func(config):
    began = time.time()
    report, now = train.report, time.perf_counter_ns
    took = []
    for i in range(config["reports"]):
        before = now()
        report({"metric_0": 0.25, "metric_1": 0.75, "metric_2": 1e-3, "metric_3": float(i)})
        took.append(now() - before)
    told = {"began": began, "report_us": statistics.median(took) / 1e3, "ended": time.time()}
    Path(config["told"]).write_text(json.dumps(told))


def continued(run, told):
    began, cpu = time.time(), time.process_time()
    result = DataParallelTrainer(
        train_func,
        train_loop_config={"reports": REPORTS, "told": told},
        run_config=RunConfig(name=run.name, storage_path=str(run.parent)),
    ).fit()
    ended, used = time.time(), time.process_time() - cpu
    assert result.metrics["metric_3"] == REPORTS - 1, result.metrics
    said = json.loads(Path(told).read_text())
    return {
        "seconds": said["began"] - began,
        "cpu_s": used,
        "report_us": said["report_us"],
        "arrived": REPORTS / (ended - said["began"]),
    }


def dataframe(run):
    import pandas  # noqa: F401  not what is timed

    result = Result.from_path(run)
    began, cpu = time.perf_counter(), time.process_time()
    rows = len(result.metrics_dataframe)
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "rows": rows}


def seen(run, look):
    began, cpu = time.perf_counter(), time.process_time()
    found = look(run)
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "rows": found}


if __name__ == "__main__":
    what, run, told = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    match what:
        case "continue":
            found = continued(run, f"{told}.worker")
        case "from_path":
            found = seen(run, lambda run: Result.from_path(run).metrics is not None)
        case "dataframe":
            found = dataframe(run)
        case "bytes":
            found = seen(run, lambda run: len((run / "journal.jsonl").read_bytes()))
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    Path(told).write_text(json.dumps(found))
