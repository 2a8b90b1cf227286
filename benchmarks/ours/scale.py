"""The real controller with many simulated workers. Arguments: a directory, and a `Plan` and more in JSON."""

import json
import resource
import sys
from collections import Counter
from pathlib import Path

import psutil
from _crowd import Crowd, Plan

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


class Restart:
    """Notes when every worker of the second attempt has made its first report."""

    def __init__(self, crowd):
        self._crowd = crowd

    def on_event(self, event, run):
        moments = self._crowd.moments
        if run.attempt == 1 or not isinstance(run.phase, Running) or "again" in moments.at:
            return
        if run.phase.progress.minimum > self._crowd.first_seq:
            self._crowd.mark("again")

    def tick(self, run, now):
        pass


def group_of(layout, command, run):
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


def simulated(path, size, plan):
    clock = FakeClock(1000.0)
    with open_run(RunLocation.from_path(str(path)), RunEnvironment(), say=lambda text: None) as (found, depot):
        layout = depot.layout
        crowd = Crowd(layout, clock, plan)
        controller = Controller(
            found,
            engine=crowd,
            store=depot,
            group=lambda command, run: group_of(layout, command, run),
            clock=clock,
            extensions=[HangWatch(None, "warn", str(path))],
            observers=[ResultCollector(found.history, found.run), Terminal(layout, 1, 3600.0), Restart(crowd)],
        )
        run = controller.drive(DriverStarted(size, 1, Retention(num_to_keep=1)))
    assert run.phase == Finished("complete"), run.phase
    assert run.num_failures == 1
    assert run.latest is not None, "no checkpoint was committed"
    return crowd


def check_journal(path, expected):
    """Every report of both attempts is there once."""
    found = Counter()
    with (path / "journal.jsonl").open("rb") as lines:
        for line in lines:
            payload = unseal_line(line)
            assert payload is not None
            if b'"type":"reported"' in payload:
                event = json.loads(payload)
                found[event["attempt"], event["rank"]] += 1
    wrong = {key: (found[key], count) for key, count in expected.items() if found[key] != count}
    assert found.keys() == expected.keys(), "workers are in the journal that there were not"
    assert not wrong, f"reports in the journal, and made, by attempt and rank: {wrong}"


def main():
    path, told = Path(sys.argv[1]) / "run", json.loads(sys.argv[2])
    size = told.pop("size")
    plan = Plan(**told)
    before = psutil.Process().memory_info().rss
    crowd = simulated(path, size, plan)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    made = {1: plan.dies_at, 2: plan.ends_at - crowd.first_seq}
    check_journal(path, {(attempt, rank): made[attempt] for attempt in made for rank in range(size)})
    moments = crowd.moments
    wall_s, cpu_s, storage_s, events = (b - a for a, b in zip(moments.steady[0], moments.steady[-1], strict=True))
    result = {
        "events": events,
        "events_per_s": events / wall_s,
        "cpu_us": 1e6 * cpu_s / events,
        "storage_us": 1e6 * storage_s / events,
        "peak_mb": peak / 1e6,
        "begun_with_mb": before / 1e6,
        "stop_s": moments.at["stopped"] - moments.at["died"],
        "start_s": moments.at["started"] - moments.at["died"],
        "again_s": moments.at["again"] - moments.at["died"],
        "messages_to_workers": crowd.num_told,
    }
    (path.parent / "result.json").write_text(json.dumps(result))


main()
