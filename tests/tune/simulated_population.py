"""A search without processes: trials that train in memory, in slots, under a scheduler whose actions are carried out.

As in a real search, a paused trial goes on from its last checkpoint, what it then reports again is not told again, and
a clone begins from its donor's checkpoint. All that a scheduler hears is kept, so that another one can hear it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from paceline.tune.schedulers.scheduler import Exploit, Pause, Resume, Stop
from paceline.tune.trial import Trial, TrialCheckpoint


@dataclass
class Life:
    trial: Trial
    state: Any
    begin: Any  # The state it goes back to where it has saved none.
    begin_iteration: int = 0  # How far the run that is under way has come before.
    at: int = 0  # The iteration that it has come to; after a pause it may be behind what was told.
    saved: Any = None
    num_lives: int = 0


class SimulatedSearch:
    def __init__(self, scheduler, configs, train, state, slots=None, iterations=20, saves=None, most_unfinished=None):
        """`train` makes of a state and a configuration the next state and what is reported; `most_unfinished`: the
        searcher has no further trial while so many are not over."""
        self.scheduler = scheduler
        self.train = train
        self.slots = slots if slots is not None else len(configs)
        self.iterations = iterations
        self.saves = saves or (lambda trial_id, iteration: True)
        self.calls = []
        self.decided = []
        self.lives = {}
        self.unmade = list(configs)
        self.begins_from = state
        self.most_unfinished = most_unfinished
        self.is_exhausted = False
        self.admit()

    @property
    def trials(self):
        return {trial_id: life.trial for trial_id, life in self.lives.items()}

    def of_status(self, *statuses):
        return [trial_id for trial_id, trial in self.trials.items() if trial.status in statuses]

    def tell(self, method, *arguments):
        self.calls.append((method, arguments))
        actions = list(getattr(self.scheduler, method)(*arguments) or ())
        self.decided.append(actions)
        for action in actions:
            self.act(action)

    def act(self, action):
        life = self.lives[action.trial_id]
        assert not life.trial.is_over, f"{action} about a trial that is over"
        match action:
            case Stop():
                self.end(action.trial_id)
            case Pause(why=why):
                assert life.trial.status == "RUNNING"
                life.trial = replace(life.trial, status="PAUSED", why=why)
                self.go_back(life)
            case Resume():
                assert life.trial.status == "PAUSED"
                life.trial = replace(life.trial, status="PENDING", why="")
            case Exploit(donor_id=donor_id, config=config):
                donor = self.lives[donor_id]
                saved = donor.trial.checkpoint
                assert donor_id != action.trial_id, "cloned from itself"
                assert saved is not None, "cloned from a checkpoint that is not committed"
                assert donor.trial.status != "ERROR", "cloned from one that has failed"
                origin = {"checkpoint": saved, "lineage": (*life.trial.lineage, saved), "iteration": saved.iteration}
                life.trial = replace(life.trial, config=config, status="PENDING", **origin)
                life.num_lives += 1
                life.begin, life.begin_iteration, life.saved = donor.saved, saved.iteration, donor.saved
                self.go_back(life)

    def go_back(self, life):
        """To its last checkpoint, or the beginning of its run."""
        saved = life.trial.checkpoint
        life.state, life.at = (life.saved, saved.iteration) if saved else (life.begin, life.begin_iteration)

    def admit(self):
        """Start trials while there is room; where the scheduler chooses none of those that wait, make another."""
        while True:
            waiting = [self.lives[trial_id].trial for trial_id in self.of_status("PENDING")]
            chosen = self.scheduler.choose(waiting) or self.made()
            if chosen is None or len(self.of_status("RUNNING")) >= self.slots:
                return
            life = self.lives[chosen.trial_id]
            life.trial = replace(life.trial, status="RUNNING")
            self.tell("on_trial_begin", life.trial)

    def made(self):
        unfinished = len(self.of_status("PENDING", "RUNNING", "PAUSED"))
        if self.is_exhausted:
            return self.stranded()
        if not self.unmade:
            self.is_exhausted = True
            self.tell("on_no_more_trials")
            return self.scheduler.choose([self.trials[t] for t in self.of_status("PENDING")]) or self.stranded()
        if self.most_unfinished is not None and unfinished >= self.most_unfinished:
            return self.stranded()
        trial_id = f"{len(self.lives):05d}"
        trial = Trial(trial_id, self.scheduler.completed(trial_id, self.unmade.pop(0)))
        self.lives[trial_id] = Life(trial, self.begins_from, self.begins_from)
        self.tell("on_trial_add", trial)
        return self.scheduler.choose([self.trials[t] for t in self.of_status("PENDING")])

    def stranded(self):
        """Nothing runs and nothing else could: one that waits, or what the scheduler lets go on."""
        if self.of_status("RUNNING"):
            return None
        if not self.of_status("PENDING") and self.of_status("PAUSED"):
            self.tell("on_idle")
            assert self.of_status("PENDING"), "all that are left are paused, and stay so"
        waiting = self.of_status("PENDING")
        return self.trials[waiting[0]] if waiting else None

    def report(self, trial_id):
        """One iteration of a trial that runs, and what follows from it."""
        life = self.lives[trial_id]
        assert life.trial.status == "RUNNING"
        if life.at >= self.iterations:  # It was paused or cloned where nothing is left to do.
            self.end(trial_id)
            return
        life.state, metrics = self.train(life.state, life.trial.config)
        life.at += 1
        if self.saves(trial_id, life.at):
            life.saved = life.state
            seq = life.at - life.begin_iteration
            run = f"trial_{trial_id}-{life.num_lives}"
            saved = TrialCheckpoint(run, seq, f"checkpoint_{seq:06d}", life.at)
            life.trial = replace(life.trial, checkpoint=saved)
        if life.at > life.trial.iteration:
            result = {"training_iteration": life.at, "trial_id": trial_id, **metrics}
            life.trial = replace(life.trial, iteration=life.at, last_result=result)
            self.tell("on_trial_result", life.trial, result)
        if life.trial.status == "RUNNING" and life.at >= self.iterations:
            self.end(trial_id)
        self.admit()

    def end(self, trial_id, has_failed=False):
        life = self.lives[trial_id]
        life.trial = replace(life.trial, status="ERROR" if has_failed else "TERMINATED")
        if has_failed:
            self.tell("on_trial_error", life.trial)
        else:
            self.tell("on_trial_complete", life.trial, life.trial.last_result)
        self.admit()

    def play(self, pick=lambda running: running[0], limit=5000):
        """Until all are over; each time one of those that run makes its next report."""
        turns = 0
        while running := self.of_status("RUNNING"):
            self.report(pick(running))
            self.admit()  # As a search looks again now and then.
            turns += 1
            assert turns < limit, "the search gets nowhere"
        stuck = self.of_status("PENDING", "PAUSED")
        assert not stuck, f"nothing runs, and {stuck} wait for ever"

    def best_score(self):
        return max(trial.last_result["score"] for trial in self.trials.values() if trial.last_result is not None)

    def clones(self):
        return [action for actions in self.decided for action in actions if isinstance(action, Exploit)]

    def replay(self, scheduler):
        """The answers of another scheduler to the same calls in the same order."""
        return [list(getattr(scheduler, method)(*arguments) or ()) for method, arguments in self.calls]


class InTurns:
    """Picks the running trial that has made the fewest picks: all train side by side."""

    def __init__(self):
        self.counts = Counter()

    def __call__(self, running):
        chosen = min(running, key=lambda trial_id: (self.counts[trial_id], trial_id))
        self.counts[chosen] += 1
        return chosen
