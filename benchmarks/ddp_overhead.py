"""Does a DDP model train as fast under our trainer as in the bare loop, and under other libraries?

Two MLPs, one of 0.4 million parameters (a step is a few milliseconds) and one of 2.1 million, batches of 64 from
memory, one thread for each worker. Ours uses `prepare_model` and `prepare_data_loader`, and reports every ten steps,
or never; the bare loop reports nothing, nor do the peers.

The bars are about a difference of 1 %, and single turns of seconds differ by a third on two virtual cores. So a bare
loop, ours and a second bare loop take turns step by step in the same two workers: whatever disturbs the machine, it
disturbs all three. A sample compares the median step of fifty with that of the two bare loops. Ours then trains alone:
its share of a report is added to each step, and to its processor time that of the driver and of our threads. The bare
loops compared with each other show the precision of the method: their ratio should be 1.

Two things are not in that: how the processes were set up, and the peers. For these, all contestants run at the same
time, the bare loop started by torchrun, all but one of them stopped (SIGSTOP), and take turns of a fraction of a second
in alternating order. There, too, the result is the median ratio of neighbours with its 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from _measure import Bar, Bench, Measure, Report, check, main, python, read_rank_results
from _turns import ONE_THREAD, REPORT_EVERY, TrainingGroup, start_group

WARM_UP = {"small": 100, "middle": 10}
TOGETHER = 50
"""Steps of each loop in one sample."""
TIMEOUT_S = 600.0
SETTLE_S = 0.003
"""Wait before reading the processor time of a turn: the driver may still write the last reports."""
BARE, AGAIN, QUIET, OURS = "bare loop", "bare loop again", "ours without reports", "ours"
PEERS = {"accelerate": "Accelerate", "lightning": "Lightning"}


@dataclass
class TurnSamples:
    """Samples of one model, by contestant and turn."""

    rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Milliseconds of processor time per step."""

    def against_bare(self, name: str) -> Interval:
        # A peer that runs in fewer rounds runs in the first ones.
        return Interval.of([a / b for a, b in zip(self.rates[name], self.rates[BARE], strict=False)])

    def cpu_against_bare(self, name: str) -> Interval:
        return Interval.of([a / b for a, b in zip(self.cpu_ms[name], self.cpu_ms[BARE], strict=False)])


@dataclass
class StepSamples:
    """Of one model, whose loops took turns step by step: ratios of the medians of `TOGETHER` steps."""

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    again_rates: list[float] = field(default_factory=list)
    again_cpu: list[float] = field(default_factory=list)

    def add(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """The group trains as fast as its slower rank; processor time is that of both."""
        report_s = max(rank["report_s"] for rank in ranks)
        own_cpu_s = sum(rank["report_s"] + rank["own_cpu_s"] for rank in ranks)
        wall_s, cpu_s = (list(zip(*(rank[key] for rank in ranks), strict=True)) for key in ("wall_s", "cpu_s"))
        for begin in range(0, len(wall_s[0][0]), TOGETHER):
            bare, ours, again = (_median_step(max, loop, begin) for loop in wall_s)
            self.rates.append((bare + again) / 2 / (ours + report_s))
            self.again_rates.append(bare / again)
            bare, ours, again = (_median_step(sum, loop, begin) for loop in cpu_s)
            self.cpu.append((ours + own_cpu_s) / ((bare + again) / 2))
            self.again_cpu.append(again / bare)


def _median_step(combine: Callable[[Sequence[float]], float], by_rank: Sequence[Sequence[float]], begin: int) -> float:
    steps = zip(*(one[begin : begin + TOGETHER] for one in by_rank), strict=True)
    return statistics.median(map(combine, steps))


@dataclass(frozen=True)
class Interval:
    middle: float
    low: float
    high: float
    samples: Sequence[float]

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Interval:
        """The median with its 95 % bootstrap interval."""
        chance = random.Random(0)
        medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
        return cls(statistics.median(ratios), medians[50], medians[-51], ratios)

    def __str__(self) -> str:
        return f"{self.middle:.4f} ({self.low:.4f} to {self.high:.4f})"


def measure(bench: Bench) -> Report:
    measures: list[Measure] = []
    notes: dict[str, str] = {}
    for model in ("small", "middle"):
        samples, steps = TurnSamples(), StepSamples()
        for number in bench.rounds():
            _train_side_by_side(bench, model, steps)
            if bench.takes_part("torchrun", number):
                _take_turns(bench, model, number, samples)
        measures += [
            Measure(f"{model} DDP model, steps against the bare loop", "", steps.rates, {}, Bar(">=", 0.99)),
            Measure(f"{model} DDP model, processor time against the bare loop", "", steps.cpu, {}, Bar("<=", 1.01)),
        ]
        for name, rates, cpu in ((OURS, steps.rates, steps.cpu), (AGAIN, steps.again_rates, steps.again_cpu)):
            notes[f"{model}, {name} step by step against the {BARE}"] = (
                f"steps {Interval.of(rates)}, processor time {Interval.of(cpu)}"
            )
        if samples.rates:
            measures.append(_compare_turns(model, samples, notes))
    return Report(measures, notes)


def _compare_turns(model: str, samples: TurnSamples, notes: dict[str, str]) -> Measure:
    others = [name for name in samples.rates if name in PEERS.values()]
    for name in (OURS, QUIET, AGAIN, *others):
        notes[f"{model}, {name} in turns against the {BARE}"] = (
            f"steps {samples.against_bare(name)}, processor time {samples.cpu_against_bare(name)}"
        )
    cpu_text = ", ".join(f"{name} {statistics.median(ms):.3g}" for name, ms in samples.cpu_ms.items())
    notes[f"{model}, processor time for a step (ms)"] = f"{cpu_text}; {len(samples.rates[BARE])} turns of each"
    peers = {name: samples.rates[name] for name in others}
    return Measure(f"{model} DDP model, steps", "/s", samples.rates[OURS], peers, None, {BARE: samples.rates[BARE]})


def _train_side_by_side(bench: Bench, model: str, samples: StepSamples) -> None:
    directory, steps = bench.directory("side-by-side"), _fewer_if_larger(bench.options.steps, model)
    bench.run(python("ours/ddp_side_by_side.py", directory, model, steps), directory, ONE_THREAD, TIMEOUT_S)
    ranks = read_rank_results(directory)
    check(all(rank["threads"] == 1 for rank in ranks), "a worker had more than one thread")
    samples.add(ranks)
    bench.log(f"{model}: {steps} steps of each loop, side by side")


def _take_turns(bench: Bench, model: str, number: int, samples: TurnSamples) -> None:
    with contextlib.ExitStack() as stack:
        groups: dict[str, TrainingGroup] = {}
        for name in ("ours", "torchrun", *PEERS):
            if name == "ours" or bench.takes_part(name, number):
                groups[name] = stack.enter_context(start_group(bench, name, model))
                groups[name].train(WARM_UP[model])
                groups[name].pause()
        steps = _steps_for(bench.options.seconds, model, groups)
        ours, bare = groups["ours"], groups["torchrun"]
        line = [(AGAIN, bare, 0), (OURS, ours, REPORT_EVERY), (BARE, bare, 0), (QUIET, ours, 0)]
        line += [(title, groups[name], 0) for name, title in PEERS.items() if name in groups]
        for turn in range(_fewer_if_larger(bench.options.turns, model)):
            for name, group, every in line if turn % 2 == 0 else reversed(line):
                rate, cpu_ms = _turn(group, steps, every)
                samples.rates[name].append(rate)
                samples.cpu_ms[name].append(cpu_ms)
        bench.log(f"{model}: turns of {steps} steps")


def _fewer_if_larger(times: int, model: str) -> int:
    """How often something is done with this model: the larger one takes longer each time."""
    return times if model == "small" else max(2, times // 2)


def _turn(group: TrainingGroup, steps: int, every: int) -> tuple[float, float]:
    """Steps a second, and milliseconds of processor time per step."""
    group.resume()
    before = group.cpu_s()
    seconds = group.train(steps, every)
    time.sleep(SETTLE_S)
    used = group.cpu_s() - before
    group.pause()
    return steps / seconds, 1e3 * used / steps


def _steps_for(seconds: float, model: str, groups: dict[str, TrainingGroup]) -> int:
    """As many steps as the fastest group does in that time, rounded up to whole rounds of reports."""
    rates = [_turn(group, WARM_UP[model], 0)[0] for group in groups.values()]
    return max(REPORT_EVERY, REPORT_EVERY * math.ceil(seconds * max(rates) / REPORT_EVERY))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=0.2, help="how long a turn lasts at least (default 0.2)")
    parser.add_argument("--turns", type=int, default=24, help="turns of each; half with the larger model (default 24)")
    parser.add_argument("--steps", type=int, default=1500, help="side by side; half if larger (default 1500)")


if __name__ == "__main__":
    peers = ("torchrun", "accelerate", "lightning")
    main("DDP overhead", measure, peers=peers, repeats=1, add_arguments=add_arguments)
