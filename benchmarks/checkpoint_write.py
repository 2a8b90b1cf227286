"""How fast is a checkpoint on the disk, compared with the bare way and with the disk itself?

Sixteen float32 tensors, all in one worker, in turns, each with no other writes pending. `torch.save` into the staging
directory and SYNC `report`, against `torch.save` and fsync; `from_directory`, against a copy of the directory and
fsync; `from_dict`, against the same bytes written with O_DIRECT by four threads and synced. The first of each is not
counted.
"""

from __future__ import annotations

import argparse
import json

from _measure import Bar, Bench, Measure, Report, check, main, python

WAYS = {
    "staged": ("torch.save and report", "save+fsync"),
    "copied": ("from_directory", "copy+fsync"),
    "state": ("from_dict", "disk"),
}
"""For each way of ours, what it is called, and what it is compared with."""


def measure(bench: Bench) -> Report:
    sizes = [(size, bench.options.times) for size in bench.options.megabytes]
    directory = bench.directory("ours")
    bench.run(python("ours/checkpoint_write.py", directory, json.dumps(sizes)), directory, timeout_s=500)
    took = {int(size): ways for size, ways in json.loads((directory / "took.json").read_text()).items()}
    measures = []
    for size, times in sizes:
        for way, (title, bare) in WAYS.items():
            ours, other = took[size][way][1:], took[size][bare][1:]
            check(len(ours) == len(other) == times, f"{way} of {size} MB: {len(ours)} of {times} saves")
            bar = _bar(way, size)
            measures.append(Measure(f"{title}, {_format_size(size)}", "s", ours, {bare: other}, bar, {bare: other}))
    return Report(measures, {})


def _bar(way: str, size: int) -> Bar | None:
    if size < 256:
        return Bar("<=", 1.3, ratio=True) if way == "staged" else None
    return Bar("<=", {"staged": 1.0, "copied": 1.1, "state": 1.15}[way], ratio=True)


def _format_size(size: int) -> str:
    return f"{size / 1024:g} GB" if size >= 1024 else f"{size} MB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 256, 2048], help="default 1 256 2048")
    parser.add_argument("--times", type=int, default=4, help="saves of each size (default 4)")


if __name__ == "__main__":
    main("checkpoint write", measure, repeats=1, add_arguments=add_arguments)
