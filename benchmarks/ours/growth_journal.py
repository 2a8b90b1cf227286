"""Reads or resumes a run. Arguments: `continue`, `from_path`, `dataframe` or `bytes`, the run, the result file.

The result has seconds, processor time and peak memory; for `continue` also the cost of a report.
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
    result = {"began": began, "report_us": statistics.median(took) / 1e3, "ended": time.time()}
    Path(config["result_path"]).write_text(json.dumps(result))


def continue_run(run, result_path):
    began, cpu = time.time(), time.process_time()
    result = DataParallelTrainer(
        train_func,
        train_loop_config={"reports": REPORTS, "result_path": result_path},
        run_config=RunConfig(name=run.name, storage_path=str(run.parent)),
    ).fit()
    ended, used = time.time(), time.process_time() - cpu
    assert result.metrics["metric_3"] == REPORTS - 1, result.metrics
    worker_result = json.loads(Path(result_path).read_text())
    return {
        "seconds": worker_result["began"] - began,
        "cpu_s": used,
        "report_us": worker_result["report_us"],
        "arrived": REPORTS / (ended - worker_result["began"]),
    }


def time_dataframe(run):
    import pandas  # noqa: F401  imported before timing starts

    result = Result.from_path(run)
    began, cpu = time.perf_counter(), time.process_time()
    rows = len(result.metrics_dataframe)
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "rows": rows}


def time_read(run, read):
    began, cpu = time.perf_counter(), time.process_time()
    rows = read(run)
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "rows": rows}


if __name__ == "__main__":
    what, run, result_path = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    match what:
        case "continue":
            result = continue_run(run, f"{result_path}.worker")
        case "from_path":
            result = time_read(run, lambda run: Result.from_path(run).metrics is not None)
        case "dataframe":
            result = time_dataframe(run)
        case "bytes":
            result = time_read(run, lambda run: sum(len(path.read_bytes()) for path in run.glob("journal*")))
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    Path(result_path).write_text(json.dumps(result))
