"""How long does a checkpoint of 256 MB keep training waiting?

Sixteen float32 tensors. SYNC: `torch.save` into the staging directory and `report`, against `torch.save` and fsync.
ASYNC: `report` of a state that is snapshotted, against `torch.save` without fsync. All four ways take turns in one
worker, on one filesystem, each with nothing else waiting to be written; the other worker gives no checkpoint. The first
round is cold, and apart.
"""

from __future__ import annotations

import argparse
import json

from _measure import Bar, Bench, Measure, Report, check, main, note, python

from paceline._control import journal
from paceline._control.events import Committed


def measured(bench: Bench) -> Report:
    megabytes, rounds = bench.options.megabytes, bench.repeats
    directory = bench.directory("run")
    bench.run(python("ours/checkpoint_stall.py", directory, megabytes, rounds), directory, timeout_s=60 + 60 * rounds)
    path = directory / "took.json"
    check(path.exists(), "no times were written: the worker did not run to its end")
    took: dict[str, list[float]] = json.loads(path.read_text())
    events = journal.read(directory / "run" / "journal.jsonl")
    committed = sum(isinstance(event, Committed) for event in events)
    check(committed == 2 * (1 + rounds), f"{committed} of {2 * (1 + rounds)} checkpoints were committed")
    later = {name: samples[1:] for name, samples in took.items()}
    first = {name: note(samples[:1], "s") for name, samples in took.items()}
    return Report(
        [
            Measure("SYNC", "s", later["staged"], {"save+fsync": later["save_fsync"]}, Bar("<=", 1.3, ratio=True)),
            Measure("ASYNC", "s", later["snapshot"], {"save": later["save"]}, Bar("<=", 0.25, ratio=True)),
        ],
        {
            "first (cold)": f"SYNC {first['staged']}, save+fsync {first['save_fsync']}, "
            f"ASYNC {first['snapshot']}, save {first['save']}",
            "ASYNC committed after": note(later["written_after"], "s"),
        },
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=256, help="how much to save (default 256)")


if __name__ == "__main__":
    main("checkpoint stall", measured, repeats=7, add_arguments=add_arguments)
