"""`Search`, folded from any sequence of what can happen and be decided, against a slow account of the same."""

import math
import random
import typing

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._core.plain import plain
from paceline.tune.drive import events
from paceline.tune.drive.state import Best, Search, driven_s, run_name
from paceline.tune.history import search_told_by

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
        return events.SearchStarted("f", 3, 0, "loss", self.mode, events.raw({}), self.at)

    def happen(self, event):
        """Through its written form, as the next driver will read it."""
        event = events.decode(events.encode(event))
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
        return events.Act(do, self.dice.choice(trials), "why", donor, events.raw({"by": do}))

    # What may happen.

    def make(self):
        trial = f"{len(self.search.trials):05d}"
        self.happen(events.TrialMade(trial, events.raw({"x": len(trial)}), self.at, self.acts()))

    def begin(self):
        trial = self.one_of(self.search.waiting())
        if trial is not None:
            self.happen(events.TrialBegan(trial.trial_id, self.search.standing[trial.trial_id].run, self.at))

    def report(self):
        trial = self.one_of(self.search.of_status("RUNNING"))
        if trial is not None:
            standing = self.search.standing[trial.trial_id]
            # A number that was told before comes again when an attempt is repeated.
            seq = max(1, standing.seen + self.dice.choice([1, 1, 1, 0]))
            metrics = events.raw({} if (value := self.dice.choice(VALUES)) is None else {"loss": plain(value, "loss")})
            at = self.dice.choice([self.at, self.at, max(0.0, self.at - 20)])  # Older, where it was found.
            self.happen(events.TrialReported(trial.trial_id, standing.run, seq, metrics, at, self.acts()))

    def save(self):
        trial = self.one_of(t for t in self.search.of_status("RUNNING") if self.search.standing[t.trial_id].seen)
        if trial is not None:
            standing = self.search.standing[trial.trial_id]
            self.happen(events.TrialSaved(trial.trial_id, standing.run, standing.seen, f"c{standing.seen}", self.at))

    def end(self):
        trial = self.one_of(self.search.of_status("RUNNING"))
        if trial is None:
            return
        leaving = self.search.standing[trial.trial_id].leaving
        asked = {None: "interrupted", "exploit": "interrupted", "stop": "stopped", "pause": "paused"}
        ending = self.dice.choice(["returned", "failed", *["as asked"] * 6])
        if ending == "as asked":
            ending = asked.get(leaving.do if leaving is not None else None, "paused")
        self.happen(events.TrialEnded(trial.trial_id, ending, self.at, "so", then=self.acts()))

    def settle(self):
        act = self.one_of(self.search.settled())
        if act is None:
            return
        donor = self.search.trials.get(act.donor)
        if act.do == "stop":
            self.happen(events.TrialEnded(act.trial, "stopped", self.at, act.why, by=act.by))
        elif act.do in ("pause", "resume"):
            self.happen(events.TrialEnded(act.trial, "paused", self.at, act.why))
        elif donor is None or donor.checkpoint is None:
            self.happen(events.TrialStayed(act.trial, self.at, "nothing to clone"))
        else:
            run = run_name(act.trial, self.search.standing[act.trial].num_lives)
            self.happen(events.TrialCloned(act.trial, run, act.donor, donor.checkpoint, act.config, self.at))

    def reset(self):
        trial = self.one_of(self.search.of_status("ERROR"))
        if trial is not None:
            standing = self.search.standing[trial.trial_id]
            anew = self.dice.choice([True, False])
            run = run_name(trial.trial_id, standing.num_lives) if anew else standing.run
            self.happen(events.TrialReset(trial.trial_id, run, self.at))

    def displace(self):
        trial = self.one_of(self.search.of_status("RUNNING"))
        if trial is not None:
            run = run_name(trial.trial_id, self.search.standing[trial.trial_id].num_lives)
            self.happen(events.TrialReset(trial.trial_id, run, self.at, why="another run is there"))

    def exhaust(self):
        self.happen(events.NoMoreTrials(self.at, self.acts(), self.dice.choice(["", "time"])))

    def idle(self):
        self.happen(events.SearchIdle(self.at, self.acts()))

    def lose(self):
        if self.dice.choice([True, False]) and not self.search.of_status("RUNNING"):
            self.happen(events.SearchEnded(self.at))
            self.at += 10
        self.happen(self.started())


SELDOM = ("make", "reset", "displace", "exhaust", "idle", "lose")
OFTEN = ("begin", "report", "report", "save", "end", "settle")


def drive(seed, check=lambda told: None, steps=150):
    told = Told(seed)
    for _ in range(steps):
        getattr(told, told.dice.choice(SELDOM + OFTEN * 4))()
        check(told)
    return told


def comparable(search):
    """All that a search knows, for an equality in which nan is itself."""
    return repr((search.trials, search.standing, search.best, search.ran_s, search.is_exhausted, search.is_complete))


def check_who_waits_and_who_is_settled(told):
    search = told.search
    leaving = {trial for trial, standing in search.standing.items() if standing.leaving is not None}
    pending = {trial.trial_id for trial in search.of_status("PENDING")}
    waiting = [trial.trial_id for trial in search.waiting()]
    assert sorted(waiting) == sorted(pending - leaving)
    begun = [search.standing[trial].num_begun > 0 for trial in waiting]
    assert begun == sorted(begun, reverse=True), "those that began already come first"
    running = {trial.trial_id for trial in search.of_status("RUNNING")}
    assert {act.trial for act in search.settled()} == leaving - running
    if isinstance(told.events[-1], events.TrialCloned | events.TrialStayed):
        assert told.events[-1].trial not in leaving, "what was decided is done"
    for trial_id, trial in search.trials.items():
        standing = search.standing[trial_id]
        assert trial.trial_id == trial_id
        assert (standing.began_at is not None) == (trial.status == "RUNNING")
        assert (standing.ended_at is not None) == trial.is_over
        assert not (trial.is_over and standing.leaving is not None)
        assert len(set(standing.runs)) == len(standing.runs) == standing.num_lives
        assert standing.run == standing.runs[-1]
        initial = (standing.initial.run,) if standing.initial is not None else ()
        assert trial.checkpoint is None or trial.checkpoint.run in (standing.run, *initial)


def check_changes(told, before):
    """A trial that is over stays so until it is reset; its iterations go back only with a clone or a new beginning; its
    time only grows."""
    event = told.events[-1]
    for trial_id, trial in told.search.trials.items():
        was = before.get(trial_id)
        before[trial_id] = trial
        if was is None:
            continue
        is_own = getattr(event, "trial", None) == trial_id
        if was.is_over and not (is_own and isinstance(event, events.TrialReset)):
            assert repr(trial) == repr(was)
        if not (is_own and isinstance(event, events.TrialCloned | events.TrialReset)):
            assert trial.iteration >= was.iteration
        if trial.last_result is not None:
            assert trial.last_result["time_total_s"] >= (was.last_result or {}).get("time_total_s", 0.0)
            assert trial.last_result["time_this_iter_s"] >= 0


def check_pins(told, needed):
    """What a clone began from is pinned until the clone has saved or is over."""
    search, event = told.search, told.events[-1]
    match event:
        case events.TrialCloned(trial=trial, saved=saved):
            needed[trial] = saved
        case events.TrialSaved(trial=trial) | events.TrialReset(trial=trial, why=""):
            if isinstance(event, events.TrialSaved) or search.standing[trial].initial is None:
                needed.pop(trial, None)
    expected = {run: set() for standing in search.standing.values() for run in standing.runs}
    for trial, saved in needed.items():
        if not search.trials[trial].is_over:
            expected[saved.run].add(saved.seq)
    assert {run: set(search.pinned(run)) for run in expected} == expected


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_after_each_event_a_search_is_what_looking_at_all_trials_and_events_gives(seed):
    before, needed = {}, {}

    def check(told):
        check_who_waits_and_who_is_settled(told)
        check_changes(told, before)
        check_pins(told, needed)

    told = drive(seed, check)
    assert told.search.best == find_best(told)


def find_best(told):
    """Of all that was reported, the first of equals."""
    better = max if told.mode == "max" else min
    known, seen = Search(), []
    for event in told.events:
        if isinstance(event, events.TrialReported) and known.is_new(event.trial, event.run, event.seq):
            value = known.result(event).get("loss")
            if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
                iteration = known.standing[event.trial].first_iteration + event.seq
                seen.append(Best(event.trial, value, iteration))
        known.apply(event)
        for act in getattr(event, "then", ()):
            known.take(act)
    return better(seen, key=lambda best: best.value, default=None)


@given(SEEDS)
@settings(max_examples=20, deadline=None)
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
            before = was[trial_id]
            assert trial.status == ("PENDING" if before.status == "RUNNING" else before.status)
            assert (trial.config, trial.iteration) == (before.config, before.iteration)
            assert trial.checkpoint == before.checkpoint
            assert found.standing[trial_id].began_at is None
        assert not found.is_complete


def test_the_dice_bring_about_everything_that_can_happen():
    kinds = {type(event) for seed in range(5) for event in drive(seed).events}
    assert kinds == set(typing.get_args(events.Event))
