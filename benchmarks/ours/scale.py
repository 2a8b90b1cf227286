"""Runs the real controller with many simulated workers. Arguments: a directory, and the size and `Plan` as JSON."""

import json
import resource
import sys
from collections import Counter
from pathlib import Path

import psutil
from _crowd import Plan, SimulatedEngine

from paceline._control.controller import Controller
from paceline._control.events import DriverStarted, Retention
from paceline._control.extensions import HangWatch
from paceline._control.run import Finished, Running
from paceline._core.codec import unseal_line
from paceline._engine.base import WorkerGroupSpec, WorkerSpec
from paceline._engine.messages import WorkerInit
from paceline._storage.run_location import RunLocation
from paceline.testing import FakeClock
from paceline.train.display.terminal import Terminal
from paceline.train.driver.failures import ResultCollector
from paceline.train.driver.run_directory import open_run
from paceline.train.driver.run_spec import RunEnvironment


class RestartObserver:
    """Records when every worker of the second attempt has made its first report."""

    def __init__(self, engine):
        self._engine = engine

    def on_event(self, event, run):
        timings = self._engine.timings
        if run.attempt == 1 or not isinstance(run.phase, Running) or "again" in timings.at:
            return
        if run.phase.progress.minimum > self._engine.first_seq:
            self._engine.mark("again")

    def tick(self, run, now):
        pass


def make_group(layout, command, run):
    first = command.resume.seq if command.resume else 0
    size = command.size
    return WorkerGroupSpec(
        command.attempt,
        tuple(
            WorkerSpec(
                WorkerInit(
                    run_name="run",
                    run_path=str(layout.root),
                    attempt=command.attempt,
                    rank=rank,
                    world_size=size,
                    local_rank=rank,
                    local_world_size=size,
                    node_rank=0,
                    first_seq=first,
                    num_threads=1,
                    checkpoints=run.checkpoints,
                    resume=command.resume,
                ),
                layout.log(command.attempt, rank),
            )
            for rank in range(size)
        ),
        b"",
    )


def simulate_run(path, size, plan):
    clock = FakeClock(1000.0)
    with open_run(RunLocation.from_path(str(path)), RunEnvironment(), say=lambda text: None) as (recovered, store):
        layout = store.layout
        engine = SimulatedEngine(layout, clock, plan)
        controller = Controller(
            recovered,
            engine=engine,
            store=store,
            group=lambda command, run: make_group(layout, command, run),
            clock=clock,
            extensions=[HangWatch(None, "warn", str(path))],
            observers=[
                ResultCollector(recovered.history, recovered.run),
                Terminal(layout, 1, 3600.0),
                RestartObserver(engine),
            ],
        )
        run = controller.drive(DriverStarted(size, 1, Retention(num_to_keep=1)))
    assert run.phase == Finished("complete"), run.phase
    assert run.num_failures == 1
    assert run.latest is not None, "no checkpoint was committed"
    return engine


def check_journal(path, expected):
    """Check that the journal has every report of both attempts once."""
    counts = Counter()
    with (path / "journal.jsonl").open("rb") as lines:
        for line in lines:
            payload = unseal_line(line)
            assert payload is not None
            if b'"type":"reported"' in payload:
                event = json.loads(payload)
                counts[event["attempt"], event["rank"]] += 1
    wrong = {key: (counts[key], count) for key, count in expected.items() if counts[key] != count}
    assert counts.keys() == expected.keys(), "the journal has reports of unknown workers"
    assert not wrong, f"reports in the journal and reports made, by attempt and rank: {wrong}"


def main():
    path, options = Path(sys.argv[1]) / "run", json.loads(sys.argv[2])
    size = options.pop("size")
    plan = Plan(**options)
    before = psutil.Process().memory_info().rss
    engine = simulate_run(path, size, plan)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    num_reports = {1: plan.dies_at, 2: plan.ends_at - engine.first_seq}
    check_journal(path, {(attempt, rank): num_reports[attempt] for attempt in num_reports for rank in range(size)})
    timings = engine.timings
    wall_s, cpu_s, storage_s, events = (b - a for a, b in zip(timings.steady[0], timings.steady[-1], strict=True))
    result = {
        "events": events,
        "events_per_s": events / wall_s,
        "cpu_us": 1e6 * cpu_s / events,
        "storage_us": 1e6 * storage_s / events,
        "peak_mb": peak / 1e6,
        "begun_with_mb": before / 1e6,
        "stop_s": timings.at["stopped"] - timings.at["died"],
        "start_s": timings.at["started"] - timings.at["died"],
        "again_s": timings.at["again"] - timings.at["died"],
        "messages_to_workers": engine.num_sent,
    }
    (path.parent / "result.json").write_text(json.dumps(result))


main()
