"""How long does a checkpoint of 1 MB, 256 MB or 2 GB block training?

Sixteen float32 tensors. SYNC: `torch.save` into the staging directory and `report`, which returns when the checkpoint
is on disk, against `torch.save` with fsync. ASYNC: `report` of a state, which is copied in memory, against `torch.save`
without fsync. All on one filesystem, each with no other writes pending. The first of each size in a process is cold and
reported separately. The floor is copying the same bytes in memory, and writing them with fsync.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import defaultdict

from _measure import Bar, Bench, Measure, Report, check, main, note, python

from paceline._control import journal
from paceline._control.events import Committed

SaveTimes = dict[int, dict[str, list[float]]]

DURABLE = {"save+fsync": "save_fsync", "Lightning": "save_checkpoint", "Ray Train": "SYNC"}
BLOCKED = {"save": "save", "DCP async": "dcp_async", "Ray Train ASYNC": "ASYNC"}
"""Peers of SYNC and ASYNC: title and key in the results of their scripts."""
WAYS = {"ours SYNC": "staged", **DURABLE, "ours ASYNC": "snapshot", **BLOCKED}


def measure(bench: Bench) -> Report:
    sizes = _sizes(bench.options.megabytes, bench.options.times)
    warm: dict[int, dict[str, list[float]]] = {size: defaultdict(list) for size, _ in sizes}
    cold: dict[int, dict[str, list[float]]] = {size: defaultdict(list) for size, _ in sizes}
    contestants = {"ours": "ours/checkpoint_stall.py", "floor": "floors/copied_bytes.py"} | {
        "torchrun": "peers/torch_checkpoint.py",
        "lightning": "peers/lightning_checkpoint.py",
        "ray": "peers/ray_checkpoint.py",
    }
    for number in bench.rounds():
        for name, script in contestants.items():
            if name in ("ours", "floor") or bench.takes_part(name, number):
                for size, ways in _measure_saves(bench, name, script, sizes).items():
                    for way, samples in ways.items():
                        cold[size][way].append(samples[0])
                        warm[size][way] += samples[1:]
    measures: list[Measure] = []
    notes: dict[str, str] = {}
    for size, _ in sizes:
        measures += _measures(size, warm[size])
        first = {title: cold[size][way] for title, way in WAYS.items() if way in cold[size]}
        notes[f"{_format_size(size)}, the first (cold)"] = ", ".join(
            f"{title} {note(s, 's')}" for title, s in first.items()
        )
        notes[f"{_format_size(size)}, ASYNC on the disk after"] = note(warm[size]["written_after"], "s")
    return Report(measures, notes)


def _sizes(megabytes: list[int], times: int | None) -> list[tuple[int, int]]:
    """How often to save each size: large ones take longer."""
    return [(size, times or (7 if size < 64 else 4 if size < 1024 else 2)) for size in megabytes]


def _measure_saves(bench: Bench, name: str, script: str, sizes: list[tuple[int, int]]) -> SaveTimes:
    directory = bench.directory(name)
    arguments = (directory, json.dumps(sizes))
    is_peer = name not in ("ours", "floor")
    command = bench.peer(name, script, *arguments) if is_peer else python(script, *arguments)
    bench.run(command, directory, timeout_s=500)
    path = directory / "took.json"
    check(path.exists(), f"{name}: no times were written, so it did not finish")
    took = {int(size): ways for size, ways in json.loads(path.read_text()).items()}
    for size, times in sizes:
        check(size in took, f"{name}: nothing of {size} MB was saved")
        for way, samples in took[size].items():
            check(len(samples) == 1 + times, f"{name}, {way}: {len(samples)} of {1 + times} saves of {size} MB")
    if name == "ours":
        events = journal.read_events(directory / "run" / "journal.jsonl")
        committed, expected = sum(isinstance(event, Committed) for event in events), sum(2 + 2 * n for _, n in sizes)
        check(committed == expected, f"{committed} of {expected} checkpoints were committed")
    if not bench.options.keep:  # Gigabytes that would compete with the next contestant's.
        shutil.rmtree(directory)
    return took


def _measures(size: int, took: dict[str, list[float]]) -> list[Measure]:
    """Measures of one size. Only large sizes have bars: small ones measure overhead, not bytes."""
    large = size >= 256
    return [
        Measure(
            f"checkpoint of {_format_size(size)}, SYNC",
            "s",
            took["staged"],
            {title: took[way] for title, way in DURABLE.items() if way in took},
            Bar("<=", 1.3, ratio=True) if large else None,
            {"write+fsync": took["write+fsync"]},
        ),
        Measure(
            f"checkpoint of {_format_size(size)}, ASYNC",
            "s",
            took["snapshot"],
            {title: took[way] for title, way in BLOCKED.items() if way in took},
            Bar("<=", 0.25, ratio=True) if large else None,
            {"memcpy": took["memcpy"]},
        ),
    ]


def _format_size(size: int) -> str:
    return f"{size / 1024:g} GB" if size >= 1024 else f"{size} MB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 256, 2048], help="default 1 256 2048")
    parser.add_argument("--times", type=int, help="saves of each size in a process (default 7, 4 and 2 by size)")


if __name__ == "__main__":
    peers = ("torchrun", "lightning", "ray")
    main("checkpoint stall", measure, peers=peers, repeats=1, peer_repeats=1, add_arguments=add_arguments)
