"""Does a small DDP model train as fast under our trainer as under torchrun?

An MLP (256-512-512-10), batches of 64 from memory, one thread for each worker. Ours uses `prepare_model` and
`prepare_data_loader` and reports metrics every ten steps; torchrun's worker wraps by hand and reports nothing. Both run
at the same time, and one waits while the other trains: turns of a few seconds, so that a machine that slows down slows
both. Each repeat starts both afresh.
"""

from __future__ import annotations

import argparse
import math
import statistics

from _measure import Bar, Bench, Measure, Report, main, note
from _turns import Trainee, trainee

WARM_UP = 100


def measured(bench: Bench) -> Report:
    ours: list[float] = []
    peer: list[float] = []
    for number in bench.rounds():
        with trainee(bench, "ours") as one, trainee(bench, "torchrun") as other:
            steps = _steps_for(bench.options.seconds, one, other)
            for turn in range(bench.options.turns):
                # Whoever goes second finds another cache and clock: they change places.
                order = [(one, ours), (other, peer)]
                for contestant, rates in order if (number + turn) % 2 == 0 else reversed(order):
                    rates.append(steps / contestant.train(steps))
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    return Report(
        # The median of the ratios of neighbouring turns would say the same with less noise; it is told beside.
        [Measure("steps", "/s", ours, {"torchrun": peer}, Bar(">=", 0.99, ratio=True))],
        {
            "ratio of neighbouring turns": note(ratios, ""),
            "a turn": f"{steps:,} steps, {steps / statistics.median(peer):.1f} s",
        },
    )


def _steps_for(seconds: float, *contestants: Trainee) -> int:
    """As many as the faster of them does in that time."""
    for contestant in contestants:
        contestant.train(WARM_UP)
    return max(WARM_UP, math.ceil(seconds * max(WARM_UP / contestant.train(WARM_UP) for contestant in contestants)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=3, help="how long a turn lasts (default 3)")
    parser.add_argument("--turns", type=int, default=6, help="turns of each in a repeat (default 6)")


if __name__ == "__main__":
    main("DDP overhead", measured, repeats=4, add_arguments=add_arguments)
