"""`Search`, folded from any sequence of what can happen and be decided, against a slow account of the same."""

import math
import random
import typing

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tune.drive.events import (
    Act,
    Event,
    NoMoreTrials,
    SearchEnded,
    SearchIdle,
    SearchStarted,
    TrialBegan,
    TrialCloned,
    TrialEnded,
    TrialMade,
    TrialReported,
    TrialReset,
    TrialSaved,
    TrialStayed,
    decode,
    encode,
    raw,
)
from paceline.tune.drive.state import Best, Search, driven_s, run_name
from paceline.tune.history import search_told_by

OVER = ("TERMINATED", "ERROR")
VALUES = (0, 1, 2.5, -3, math.nan, math.inf, "text", None, True)
SEEDS = st.integers(0, 1 << 32)


class Told:
    """A search that is driven by dice, and what was written down of it. Nothing happens that a driver would not do."""

    def __init__(self, seed):
        self.search = Search()
        self.events = []
        self.at = 0.0
        self.dice = random.Random(seed)
        self.mode = self.dice.choice(["min", "max"])
        self.happen(self.started())

    def started(self):
        return SearchStarted("f", 3, 0, "loss", self.mode, raw({}), self.at)

    def happen(self, event):
        """Through its written form, as the next driver will read it."""
        event = decode(encode(event))
        self.events.append(event)
        self.search.apply(event)
        for act in getattr(event, "then", ()):
            self.search.take(act)
        self.at += 1

    def one_of(self, found):
        found = list(found)
        return self.dice.choice(found) if found else None

    def acts(self):
        trials = sorted(self.search.trials)
        return tuple(self.act(trials) for _ in range(self.dice.choice([0, 0, 1, 2]))) if trials else ()

    def act(self, trials):
        do = self.dice.choice(["stop", "pause", "pause", "resume", "exploit", "exploit", "exploit"])
        donor = self.dice.choice(trials) if do == "exploit" else ""
        return Act(do, self.dice.choice(trials), "why", donor, raw({"by": do}))

    # What may happen.

    def make(self):
        trial = f"{len(self.search.trials):05d}"
        self.happen(TrialMade(trial, raw({"x": len(trial)}), self.at, self.acts()))

    def begin(self):
        trial = self.one_of(self.search.waiting())
        if trial is not None:
            self.happen(TrialBegan(trial.trial_id, self.search.standing[trial.trial_id].run, self.at))

    def report(self):
        trial = self.one_of(self.search.of_status("RUNNING"))
        if trial is not None:
            standing = self.search.standing[trial.trial_id]
            # A number that was told before comes again when an attempt is repeated.
            seq = max(1, standing.seen + self.dice.choice([1, 1, 1, 0]))
            metrics = raw({} if (value := self.dice.choice(VALUES)) is None else {"loss": _plain(value)})
            at = self.dice.choice([self.at, self.at, max(0.0, self.at - 20)])  # Older, where it was found.
            self.happen(TrialReported(trial.trial_id, standing.run, seq, metrics, at, self.acts()))

    def save(self):
        trial = self.one_of(t for t in self.search.of_status("RUNNING") if self.search.standing[t.trial_id].seen)
        if trial is not None:
            standing = self.search.standing[trial.trial_id]
            self.happen(TrialSaved(trial.trial_id, standing.run, standing.seen, f"c{standing.seen}", self.at))

    def end(self):
        trial = self.one_of(self.search.of_status("RUNNING"))
        if trial is None:
            return
        leaving = self.search.standing[trial.trial_id].leaving
        asked = {None: "interrupted", "exploit": "interrupted", "stop": "stopped", "pause": "paused"}
        ending = self.dice.choice(["returned", "failed", *["as asked"] * 6])
        if ending == "as asked":
            ending = asked.get(leaving.do if leaving is not None else None, "paused")
        self.happen(TrialEnded(trial.trial_id, ending, self.at, "so", then=self.acts()))

    def settle(self):
        act = self.one_of(self.search.settled())
        if act is None:
            return
        donor = self.search.trials.get(act.donor)
        if act.do == "stop":
            self.happen(TrialEnded(act.trial, "stopped", self.at, act.why, by=act.by))
        elif act.do in ("pause", "resume"):
            self.happen(TrialEnded(act.trial, "paused", self.at, act.why))
        elif donor is None or donor.checkpoint is None:
            self.happen(TrialStayed(act.trial, self.at, "nothing to clone"))
        else:
            run = run_name(act.trial, self.search.standing[act.trial].num_lives)
            self.happen(TrialCloned(act.trial, run, act.donor, donor.checkpoint, act.config, self.at))

    def reset(self):
        trial = self.one_of(self.search.of_status("ERROR"))
        if trial is not None:
            standing = self.search.standing[trial.trial_id]
            anew = self.dice.choice([True, False])
            run = run_name(trial.trial_id, standing.num_lives) if anew else standing.run
            self.happen(TrialReset(trial.trial_id, run, self.at))

    def displace(self):
        trial = self.one_of(self.search.of_status("RUNNING"))
        if trial is not None:
            run = run_name(trial.trial_id, self.search.standing[trial.trial_id].num_lives)
            self.happen(TrialReset(trial.trial_id, run, self.at, why="another run is there"))

    def exhaust(self):
        self.happen(NoMoreTrials(self.at, self.acts(), self.dice.choice(["", "time"])))

    def idle(self):
        self.happen(SearchIdle(self.at, self.acts()))

    def lose(self):
        if self.dice.choice([True, False]) and not self.search.of_status("RUNNING"):
            self.happen(SearchEnded(self.at))
            self.at += 10
        self.happen(self.started())


SELDOM = ("make", "reset", "displace", "exhaust", "idle", "lose")
OFTEN = ("begin", "report", "report", "save", "end", "settle")


def _plain(value):
    from paceline._core.plain import plain

    return plain(value, "loss")


def drive(seed, check=lambda told: None, steps=150):
    told = Told(seed)
    for _ in range(steps):
        getattr(told, told.dice.choice(SELDOM + OFTEN * 4))()
        check(told)
    return told


def comparable(search):
    """All that a search knows, for an equality in which nan is itself."""
    return repr((search.trials, search.standing, search.best, search.ran_s, search.is_exhausted, search.is_complete))


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_who_waits_and_who_is_settled_is_what_looking_at_all_trials_gives(seed):
    def check(told):
        search = told.search
        leaving = {trial for trial, standing in search.standing.items() if standing.leaving is not None}
        pending = {trial.trial_id for trial in search.of_status("PENDING")}
        waiting = [trial.trial_id for trial in search.waiting()]
        assert sorted(waiting) == sorted(pending - leaving)
        begun = [search.standing[trial].num_begun > 0 for trial in waiting]
        assert begun == sorted(begun, reverse=True), "those that began already come first"
        running = {trial.trial_id for trial in search.of_status("RUNNING")}
        assert {act.trial for act in search.settled()} == leaving - running
        if isinstance(told.events[-1], TrialCloned | TrialStayed):
            assert told.events[-1].trial not in leaving, "what was decided is done"
        for trial_id, trial in search.trials.items():
            standing = search.standing[trial_id]
            assert trial.trial_id == trial_id
            assert (standing.began_at is not None) == (trial.status == "RUNNING")
            assert (standing.ended_at is not None) == trial.is_over
            assert not (trial.is_over and standing.leaving is not None)
            assert len(set(standing.runs)) == len(standing.runs) == standing.num_lives
            assert standing.run == standing.runs[-1]
            assert trial.checkpoint is None or trial.checkpoint.run in (standing.run, *_initial_run(standing))

    drive(seed, check)


def _initial_run(standing):
    return (standing.initial.run,) if standing.initial is not None else ()


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_a_trial_that_is_over_stays_so_until_it_is_reset(seed):
    before = {}

    def check(told):
        for trial_id, trial in told.search.trials.items():
            was = before.get(trial_id)
            reset = isinstance(told.events[-1], TrialReset) and told.events[-1].trial == trial_id
            if was is not None and was.is_over and not reset:
                assert trial == was or repr(trial) == repr(was)
            before[trial_id] = trial

    drive(seed, check)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_best_is_the_best_of_all_that_was_reported(seed):
    told = drive(seed)
    better = max if told.mode == "max" else min
    known, seen = Search(), []
    for event in told.events:
        if isinstance(event, TrialReported) and known.is_new(event.trial, event.run, event.seq):
            value = known.result(event).get("loss")
            if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
                iteration = known.standing[event.trial].first_iteration + event.seq
                seen.append(Best(event.trial, value, iteration))
        known.apply(event)
        for act in getattr(event, "then", ()):
            known.take(act)
    if not seen:
        assert told.search.best is None
    else:
        top = better(best.value for best in seen)
        assert told.search.best == next(best for best in seen if best.value == top), "the first of equals"


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_what_a_clone_began_from_is_pinned_until_the_clone_has_saved_or_is_over(seed):
    needed = {}

    def check(told):
        match told.events[-1]:
            case TrialCloned(trial=trial, saved=saved):
                needed[trial] = saved
            case TrialSaved(trial=trial) | TrialReset(trial=trial, why=""):
                if isinstance(told.events[-1], TrialSaved) or told.search.standing[trial].initial is None:
                    needed.pop(trial, None)
        search = told.search
        runs = {run for standing in search.standing.values() for run in standing.runs}
        expected = {run: set() for run in runs}
        for trial, saved in needed.items():
            if not search.trials[trial].is_over:
                expected[saved.run].add(saved.seq)
        assert {run: set(search.pinned(run)) for run in runs} == expected

    drive(seed, check)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_next_driver_finds_the_search_as_it_was_and_what_ran_waits(seed):
    told = drive(seed)
    for length in [*range(1, len(told.events), 7), len(told.events)]:
        found = search_told_by(told.events[:length])
        if length == len(told.events):
            assert comparable(found) == comparable(told.search)
        was = dict(found.trials)
        assert math.isclose(found.elapsed_s(found.last_at), driven_s(told.events[:length]))
        found.apply(told.started())
        for trial_id, trial in found.trials.items():
            assert trial.status == ("PENDING" if was[trial_id].status == "RUNNING" else was[trial_id].status)
            assert trial.config == was[trial_id].config
            assert trial.iteration == was[trial_id].iteration
            assert trial.checkpoint == was[trial_id].checkpoint
            assert found.standing[trial_id].began_at is None
        assert not found.is_complete


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_iterations_of_a_trial_only_go_back_with_a_clone_or_a_new_beginning(seed):
    before = {}

    def check(told):
        event = told.events[-1]
        for trial_id, trial in told.search.trials.items():
            began_anew = isinstance(event, TrialCloned | TrialReset) and event.trial == trial_id
            if trial_id in before and not began_anew:
                assert trial.iteration >= before[trial_id]
            before[trial_id] = trial.iteration

    drive(seed, check)


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_the_time_of_a_trial_only_grows(seed):
    before = {}

    def check(told):
        for trial_id, trial in told.search.trials.items():
            if trial.last_result is None:
                before.pop(trial_id, None)
                continue
            total_s = trial.last_result["time_total_s"]
            assert total_s >= before.get(trial_id, 0.0)
            assert trial.last_result["time_this_iter_s"] >= 0
            before[trial_id] = total_s

    drive(seed, check)


def test_the_dice_bring_about_everything_that_can_happen():
    kinds = {type(event) for seed in range(5) for event in drive(seed).events}
    assert kinds == set(typing.get_args(Event))
