"""How fast is Paceline on a GPU?

Compared on one GPU: tokens a second of a compiled GPT under our trainer and in a bare loop; images a second of a ResNet
fed by `paceline.data` and by a DataLoader with as many processes; how long a checkpoint of GPU state blocks the loop,
against a bare copy, `torch.save` and DCP; recovery of a killed worker with a CUDA context; and runs of 1 to 16 CPU
workers on the host. Without a GPU it fails, unless `--try-on-cpu` is given: then sizes are tiny and the numbers mean
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _data import write_images
from _gpu import read_result
from _measure import HERE, Bar, Bench, BenchmarkError, Curve, Measure, Report, main, note, python

QUESTIONS = ("tokens", "pictures", "checkpoint", "recovery", "workers")


def measure(bench: Bench) -> Report:
    import torch

    tiny = not torch.cuda.is_available()
    if tiny and not bench.options.try_on_cpu:
        raise BenchmarkError("no GPU found; use --try-on-cpu to check that the scripts work")
    measures: list[Measure] = []
    curves: list[Curve] = []
    notes = {"device": "CPU, tiny sizes: these numbers mean nothing" if tiny else _describe_device()}
    questions: dict[str, Callable[[Bench, bool], Report]] = {
        "tokens": _tokens,
        "pictures": _images,
        "checkpoint": _checkpoint,
        "recovery": _recovery,
        "workers": _workers,
    }
    for name in bench.options.only:
        report = questions[name](bench, tiny)
        measures += report.measures
        curves += report.curves
        notes |= report.notes
    return Report(measures, notes, curves)


def _tokens(bench: Bench, tiny: bool) -> Report:
    config = {"turns": 1 if tiny else 5, "steps": 1 if tiny else 60, "tiny": tiny}
    # Both compile the same graph, and the second finds it in the cache, so the first round is not counted.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(bench.directory("compiled"))}
    ours, bare = [], []
    for number in bench.rounds(warm_up=0 if tiny else 1):
        for samples, command in ((ours, "ours/gpu.py"), (bare, "peers/gpu_bare.py")):
            directory = bench.directory("tokens")
            bench.run(python(command, directory, "tokens", json.dumps(config)), directory, cache)
            if number >= 0:
                samples += read_result(directory)["rates"]
    return Report(
        [Measure("GPT tokens", "/s", ours, {"bare loop": bare}, Bar(">=", 0.99, ratio=True), floor={"bare loop": bare})]
    )


def _images(bench: Bench, tiny: bool) -> Report:
    files = bench.storage / "pictures"
    rows, batch_size = (64, 16) if tiny else (32_768, 256)
    write_images(files, rows, num_files=8 if tiny else 64)
    processes = 2 if tiny else len(os.sched_getaffinity(0))
    config = {"files": str(files), "rows": rows, "batch_size": batch_size, "processes": processes}
    rate: dict[str, list[float]] = {}
    waited: dict[str, list[float]] = {}
    for _ in bench.rounds():
        for name, script, question, epochs in (
            ("ours", "ours/gpu.py", "pictures", 3),
            ("DataLoader", "peers/gpu_bare.py", "pictures", 3),
            ("made on the GPU", "peers/gpu_bare.py", "made", 2),
            ("decoded only", "peers/gpu_bare.py", "decoded", 2),
        ):
            directory = bench.directory(question)
            bench.run(python(script, directory, question, json.dumps({**config, "epochs": epochs})), directory)
            all_epochs = read_result(directory)["epochs"]
            if any(epoch["pictures"] != rows for epoch in all_epochs):
                raise BenchmarkError(f"{name}: an epoch did not have {rows} images: {all_epochs}")
            # The first epoch starts processes and selects kernels.
            best = max(all_epochs[1:], key=lambda epoch: epoch["pictures"] / epoch["seconds"])
            rate.setdefault(name, []).append(best["pictures"] / best["seconds"])
            waited.setdefault(name, []).append(100 * best["waited"])
    return Report(
        [
            Measure(
                "ResNet pictures",
                "/s",
                rate["ours"],
                {"DataLoader": rate["DataLoader"]},
                Bar(">=", 1.0, ratio=True),
                floor={name: rate[name] for name in ("decoded only", "made on the GPU")},
            ),
            Measure("the GPU waits", "%", waited["ours"], {"DataLoader": waited["DataLoader"]}),
        ]
    )


def _checkpoint(bench: Bench, tiny: bool) -> Report:
    measures, notes = [], {}
    for gigabytes in (0.01, 0.02) if tiny else bench.options.gigabytes:
        saves, others = (1, 1) if tiny else (4, 2)
        config = json.dumps({"gigabytes": gigabytes, "saves": saves, "others": others})
        directory = bench.directory("checkpoint")
        bench.run(python("ours/gpu.py", directory, "checkpoint", config), directory)
        result = read_result(directory)
        measures.append(
            Measure(
                f"{gigabytes:g} GB: the loop is blocked",
                "s",
                result["ours"][1:],
                {
                    "bare copy": result["copy"][1:],
                    "torch.save": result["torch.save"],
                    "DCP async": result["DCP async"],
                },
                Bar("<=", 1.2, ratio=True),
                floor={"bare copy": result["copy"][1:]},
            )
        )
        disk = {"the disk's best": result["disk"][1:]}
        durable = Bar("<=", 1.15, ratio=True)
        measures.append(
            Measure(f"{gigabytes:g} GB: committed", "s", result["committed"][1:], disk, durable, floor=disk)
        )
        notes[f"{gigabytes:g} GB, report() returned"] = note(result["ours returned"][1:], "s")
        notes[f"{gigabytes:g} GB, first save, with its pinned memory"] = note(result["ours"][:1], "s")
        bare = {"bare copy": result["copy"][1:]}
        for trained_s, bar in ((4, Bar("<=", 1.5, ratio=True)), (0, Bar("<=", 1.2))):
            blocked, slowest = [], []
            for _ in bench.rounds():
                directory = bench.directory("first-save")
                first = json.dumps({"gigabytes": gigabytes, "trained_s": trained_s})
                bench.run(python("ours/gpu.py", directory, "first save", first), directory)
                result = read_result(directory)
                blocked.append(result["blocked"])
                slowest.append(max(result["steps"][1:], default=0) * 1000)
            name = f"{gigabytes:g} GB: the first save blocks, {'after 4 s of training' if trained_s else 'at once'}"
            measures.append(Measure(name, "s", blocked, bare, bar, floor=bare))
            if trained_s:
                usual = note([1000 * step for step in sorted(result["steps"])[len(result["steps"]) // 2 :][:1]], "ms")
                notes[f"{gigabytes:g} GB, slowest step while memory is page-locked"] = (
                    f"{note(slowest, 'ms')}, usual {usual}"
                )
    return Report(measures, notes)


def _recovery(bench: Bench, tiny: bool) -> Report:
    ours, torchrun = [], []
    for _ in bench.rounds():
        directory = bench.directory("recovery")
        bench.run(python("ours/gpu.py", directory, "recovery", "{}"), directory)
        ours.append(read_result(directory)["seconds"])
        directory = bench.directory("recovery")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        script = [str(HERE / "peers" / "gpu_bare.py"), str(directory), "recovery", "{}"]
        bench.run([*command, "--nproc-per-node", "1", "--max-restarts", "1", *script], directory)
        torchrun.append(read_result(directory)["seconds"])
    return Report([Measure("kill to first kernel", "s", ours, {"torchrun": torchrun}, Bar("<", 1.0))])


def _workers(bench: Bench, tiny: bool) -> Report:
    """Run `growth_workers.py` on the cores of this machine."""
    path = bench.storage / "workers.json"
    sizes = ("1", "2") if tiny else ("1", "2", "4", "8", "16")
    options = ["--workers", *sizes, "--environments", _make_torchrun_environment(bench), "--repeats", "1"]
    bench.run(python("growth_workers.py", "--json", path, *options), bench.directory("workers"))
    result: dict[str, Any] = json.loads(path.read_text())
    return Report(
        [Measure.from_json(each) for each in result["measures"]],
        {f"CPU workers, {name}": text for name, text in result["notes"].items()},
        [Curve.from_json(each) for each in result["curves"]],
    )


def _make_torchrun_environment(bench: Bench) -> Path:
    """Make an environment for torchrun from this interpreter, whose torch is built for the GPU."""
    directory = bench.directory("environments")
    programs = directory / ".venv-torchrun" / "bin"
    programs.mkdir(parents=True)
    for name, command in (("python", ""), ("torchrun", " -m torch.distributed.run")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{command} "$@"\n')
        (programs / name).chmod(0o755)
    return directory


def _describe_device() -> str:
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, driver {driver}"


def _add_arguments(parser: argparse.ArgumentParser) -> Sequence[object]:
    return (
        parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=QUESTIONS, help="only these questions"),
        parser.add_argument("--gigabytes", nargs="+", type=float, default=(2, 8), help="sizes of the state"),
        parser.add_argument("--try-on-cpu", action="store_true", help="tiny sizes, to check that the scripts work"),
    )


if __name__ == "__main__":
    main("on a GPU", measure, repeats=2, add_arguments=_add_arguments)
