"""How long does a scheduler take to decide on a report, with a thousand trials?

No trial really runs. Each search has a thousand active trials, and one that ends is replaced, until ten thousand
reports have been handled. Reports come in random order, with falling and noisy losses. The time is the processor time
of the call that the search's driver waits for.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from _measure import Bar, Bench, Measure, Report, check, main, note

from paceline import tune
from paceline.tune.schedulers.hyperband import ASHAScheduler, HyperBandScheduler
from paceline.tune.schedulers.median import MedianStoppingRule
from paceline.tune.schedulers.pbt import PopulationBasedTraining
from paceline.tune.schedulers.scheduler import FIFOScheduler, Pause, Resume, Stop, TrialScheduler
from paceline.tune.trial import Trial, TrialCheckpoint

ITERATION: dict[str, Any] = {"time_attr": "training_iteration", "metric": "loss", "mode": "min"}
SECONDS: dict[str, Any] = {"time_attr": "time_total_s", "metric": "loss", "mode": "min"}
MUTATIONS = {"lr": tune.loguniform(1e-5, 1e-1)}

SCHEDULERS: dict[str, Callable[[], TrialScheduler]] = {
    "FIFO": FIFOScheduler,
    "ASHA": lambda: ASHAScheduler(**ITERATION),
    "ASHA, 3 brackets": lambda: ASHAScheduler(**SECONDS, brackets=3),
    "HyperBand": lambda: HyperBandScheduler(**ITERATION),
    "median rule": lambda: MedianStoppingRule(**ITERATION, grace_period=1),
    "median rule by seconds": lambda: MedianStoppingRule(**SECONDS, grace_period=1),
    "PBT": lambda: PopulationBasedTraining(
        **ITERATION, perturbation_interval=2, hyperparam_mutations=MUTATIONS, seed=1
    ),
}


class Trials:
    """Simulates active trials for a scheduler."""

    def __init__(self, scheduler: TrialScheduler, alive: int) -> None:
        self._scheduler = scheduler
        self._chance = random.Random(7)
        self._running: list[str] = []
        self._iterations: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._ran_s: dict[str, float] = defaultdict(float)
        self._paused: set[str] = set()
        self.num_ended = 0
        for _ in range(alive):
            self._add()

    def time_decision_us(self) -> float:
        """Make the next report of a random trial and return the microseconds of the decision."""
        while not self._running:
            self._add()
        trial_id = self._chance.choice(self._running)
        iteration = self._iterations[trial_id] = self._iterations[trial_id] + 1
        self._ran_s[trial_id] += self._chance.uniform(0.5, 1.5)
        loss = math.exp(-self._rates[trial_id] * iteration) + self._chance.gauss(0, 0.01)
        config = {"lr": self._rates[trial_id]}
        result = {
            "training_iteration": iteration,
            "time_total_s": self._ran_s[trial_id],
            "loss": loss,
            "trial_id": trial_id,
            "config": config,
        }
        checkpoint = TrialCheckpoint(f"trial_{trial_id}", iteration, f"checkpoint_{iteration:06d}", iteration)
        trial = Trial(trial_id, config, "RUNNING", result, checkpoint, iteration)
        began = time.thread_time_ns()
        answer = self._scheduler.on_trial_result(trial, result)
        took = time.thread_time_ns() - began
        check(not isinstance(answer, str), f"{type(self._scheduler).__name__} answers {answer!r}")
        self._apply(answer)
        return took / 1e3

    def _apply(self, actions: Sequence[Any]) -> None:
        for action in actions:
            trial_id = action.trial_id
            match action:
                case Stop():
                    self._paused.discard(trial_id)
                    if trial_id in self._running:
                        self._running.remove(trial_id)
                    self.num_ended += 1
                    self._add()
                case Pause():
                    self._running.remove(trial_id)
                    self._paused.add(trial_id)
                case Resume():
                    self._paused.discard(trial_id)
                    self._running.append(trial_id)

    def _add(self) -> None:
        trial_id = f"{len(self._iterations):05d}"
        self._iterations[trial_id] = 0
        self._rates[trial_id] = 10 ** self._chance.uniform(-3, 0)
        self._running.append(trial_id)
        self._apply(self._scheduler.on_trial_add(Trial(trial_id, {"lr": self._rates[trial_id]})))


def measure(bench: Bench) -> Report:
    alive, reports = bench.options.trials, bench.options.reports
    means: dict[str, list[float]] = defaultdict(list)
    tails: dict[str, list[float]] = defaultdict(list)
    ended: dict[str, int] = {}
    for _ in bench.rounds():
        for name, make in SCHEDULERS.items():
            trials = Trials(make(), alive)
            took = sorted(trials.time_decision_us() for _ in range(reports))
            check(len(took) == reports, f"{name}: {len(took)} reports instead of {reports}")
            means[name].append(statistics.fmean(took))
            tails[name].append(took[int(0.999 * reports)])
            ended[name] = trials.num_ended
    return Report(
        [Measure(f"{name}, 99.9 % of decisions", "us", tails[name], {}, Bar("<", 1000)) for name in SCHEDULERS],
        {
            "mean": "; ".join(f"{name} {note(means[name], 'us')}" for name in SCHEDULERS),
            "trials ended": ", ".join(f"{name} {count:,}" for name, count in ended.items()),
        },
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=1000, help="how many are active (default 1000)")
    parser.add_argument("--reports", type=int, default=10_000, help="how many reports (default 10000)")


if __name__ == "__main__":
    main("tune decisions", measure, repeats=3, add_arguments=add_arguments)
