"""Does a DDP model train as fast under our trainer as in the bare loop, and under other libraries?

Two MLPs, one of 0.4 million parameters (a step is a few milliseconds) and one of 2.1 million, batches of 64 from
memory, one thread for each worker. Ours uses `prepare_model` and `prepare_data_loader`, and reports every ten steps,
or never; the bare loop is started by torchrun and reports nothing, nor do the peers.

Single turns of seconds differ by a third on two virtual cores. So all contestants run at the same time, all but one of
them stopped (SIGSTOP), and take short turns in alternating order, so that noise affects all equally. The result is the
median ratio of neighbouring turns with its 95 % bootstrap interval, for steps a second and for processor time per step.
The latter is steadier and includes all processes of the contestant, its driver too. The bare loop takes two turns: its
ratio to itself should be 1 and shows the precision of the method.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from _measure import Bar, Bench, Measure, Report, check, main
from _turns import REPORT_EVERY, TrainingGroup, start_group

WARM_UP = {"small": 100, "middle": 10}
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
    check(bench.takes_part("torchrun", 0), "torchrun must take part: it runs the bare loop that all are compared with")
    measures, notes = [], {}
    for model in ("small", "middle"):
        samples = TurnSamples()
        for number in bench.rounds():
            _take_turns(bench, model, number, samples)
        others = [name for name in samples.rates if name in PEERS.values()]
        measures += [
            Measure(
                f"{model} DDP model, steps against the bare loop",
                "",
                samples.against_bare(OURS).samples,
                {},
                Bar(">=", 0.99),
            ),
            Measure(
                f"{model} DDP model, processor time against the bare loop",
                "",
                samples.cpu_against_bare(OURS).samples,
                {},
                Bar("<=", 1.01),
            ),
            Measure(
                f"{model} DDP model, steps",
                "/s",
                samples.rates[OURS],
                {name: samples.rates[name] for name in others},
                None,
                {BARE: samples.rates[BARE]},
            ),
        ]
        for name in (OURS, QUIET, AGAIN, *others):
            notes[f"{model}, {name} against the {BARE}"] = (
                f"steps {samples.against_bare(name)}, processor time {samples.cpu_against_bare(name)}"
            )
        cpu_text = ", ".join(f"{name} {statistics.median(ms):.3g}" for name, ms in samples.cpu_ms.items())
        notes[f"{model}, processor time for a step (ms)"] = f"{cpu_text}; {len(samples.rates[BARE])} turns of each"
    return Report(measures, notes)


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
        for turn in range(_num_turns(bench, model)):
            for name, group, every in line if turn % 2 == 0 else reversed(line):
                rate, cpu_ms = _turn(group, steps, every)
                samples.rates[name].append(rate)
                samples.cpu_ms[name].append(cpu_ms)
        bench.log(f"{model}: turns of {steps} steps")


def _num_turns(bench: Bench, model: str) -> int:
    """Fewer turns for the larger model, whose turns take longer."""
    turns: int = bench.options.turns
    return turns if model == "small" else max(2, turns // 2)


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
    parser.add_argument("--turns", type=int, default=36, help="turns of each; half with the larger model (default 36)")


if __name__ == "__main__":
    peers = ("torchrun", "accelerate", "lightning")
    main("DDP overhead", measure, peers=peers, repeats=1, add_arguments=add_arguments)
