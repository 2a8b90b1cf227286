"""`Search`, folded from any sequence of what can happen and be decided, against a slow account of the same."""

import math
import random
import typing

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._core.plain_values import to_plain
from paceline.tune.driver import events
from paceline.tune.driver.search_state import BestReport, Search, run_name, total_driven_s
from paceline.tune.results.report_history import replay_search

VALUES = (0, 1, 2.5, -3, math.nan, math.inf, "text", None, True)
SEEDS = st.integers(0, 1 << 32)


class RandomHistory:
    """A search that is driven by dice, and what was written down of it. Nothing happens that a driver would not do."""

    def __init__(self, seed):
        self.search = Search()
        self.events = []
        self.at = 0.0
        self.dice = random.Random(seed)
        self.mode = self.dice.choice(["min", "max"])
        self.happen(self.started())

    def started(self):
        return events.SearchStarted("f", 3, 0, "loss", self.mode, events.encode_raw({}), self.at)

    def happen(self, event):
        """Through its written form, as the next driver will read it."""
        event = events.decode(events.encode(event))
        self.events.append(event)
        self.search.apply(event)
        for act in getattr(event, "then", ()):
            self.search.apply_decision(act)
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
        return events.TrialDecision(do, self.dice.choice(trials), "why", donor, events.encode_raw({"by": do}))

    # What may happen.

    def make(self):
        trial = f"{len(self.search.trials):05d}"
        self.happen(events.TrialMade(trial, events.encode_raw({"x": len(trial)}), self.at, self.acts()))

    def begin(self):
        trial = self.one_of(self.search.waiting_trials())
        if trial is not None:
            self.happen(events.TrialBegan(trial.trial_id, self.search.trial_records[trial.trial_id].run, self.at))

    def report(self):
        trial = self.one_of(self.search.trials_with_status("RUNNING"))
        if trial is not None:
            standing = self.search.trial_records[trial.trial_id]
            # A number that was reported before comes again when an attempt is repeated.
            seq = max(1, standing.last_seq + self.dice.choice([1, 1, 1, 0]))
            value = self.dice.choice(VALUES)
            metrics = events.encode_raw({} if value is None else {"loss": to_plain(value, "loss")})
            at = self.dice.choice([self.at, self.at, max(0.0, self.at - 20)])  # Older, where it was found.
            self.happen(events.TrialReported(trial.trial_id, standing.run, seq, metrics, at, self.acts()))

    def save(self):
        records = self.search.trial_records
        trial = self.one_of(t for t in self.search.trials_with_status("RUNNING") if records[t.trial_id].last_seq)
        if trial is not None:
            run, seq = records[trial.trial_id].run, records[trial.trial_id].last_seq
            self.happen(events.TrialSaved(trial.trial_id, run, seq, f"c{seq}", self.at))

    def end(self):
        trial = self.one_of(self.search.trials_with_status("RUNNING"))
        if trial is None:
            return
        leaving = self.search.trial_records[trial.trial_id].pending_decision
        asked = {None: "interrupted", "exploit": "interrupted", "stop": "stopped", "pause": "paused"}
        ending = self.dice.choice(["returned", "failed", *["as asked"] * 6])
        if ending == "as asked":
            ending = asked.get(leaving.do if leaving is not None else None, "paused")
        self.happen(events.TrialEnded(trial.trial_id, ending, self.at, "so", then=self.acts()))

    def settle(self):
        act = self.one_of(self.search.ready_decisions())
        if act is None:
            return
        donor = self.search.trials.get(act.donor)
        if act.do == "stop":
            self.happen(events.TrialEnded(act.trial, "stopped", self.at, act.why, by=act.by))
        elif act.do in ("pause", "resume"):
            self.happen(events.TrialEnded(act.trial, "paused", self.at, act.why))
        elif donor is None or donor.checkpoint is None:
            self.happen(events.TrialCloneSkipped(act.trial, self.at, "nothing to clone"))
        else:
            run = run_name(act.trial, self.search.trial_records[act.trial].num_runs)
            self.happen(events.TrialCloned(act.trial, run, act.donor, donor.checkpoint, act.config, self.at))

    def reset(self):
        trial = self.one_of(self.search.trials_with_status("ERROR"))
        if trial is not None:
            standing = self.search.trial_records[trial.trial_id]
            anew = self.dice.choice([True, False])
            run = run_name(trial.trial_id, standing.num_runs) if anew else standing.run
            self.happen(events.TrialReset(trial.trial_id, run, self.at))

    def displace(self):
        trial = self.one_of(self.search.trials_with_status("RUNNING"))
        if trial is not None:
            run = run_name(trial.trial_id, self.search.trial_records[trial.trial_id].num_runs)
            self.happen(events.TrialReset(trial.trial_id, run, self.at, why="another run is there"))

    def exhaust(self):
        self.happen(events.NoMoreTrials(self.at, self.acts(), self.dice.choice(["", "time"])))

    def idle(self):
        self.happen(events.SearchIdle(self.at, self.acts()))

    def choose(self):
        trial = self.one_of(self.search.trials_with_status("PAUSED"))
        if trial is not None:
            resume = events.TrialDecision("resume", trial.trial_id)
            self.happen(events.TrialChosen(trial.trial_id, self.at, (resume,)))

    def note(self):
        """What changes nothing about the search."""
        trial = self.one_of(self.search.trials_with_status("RUNNING"))
        if trial is not None:
            self.happen(events.TrialRetried(trial.trial_id, self.search.trial_records[trial.trial_id].run, self.at))
        self.happen(events.CallbackStatesSaved(self.at, events.encode_raw([])))

    def lose(self):
        if self.dice.choice([True, False]) and not self.search.trials_with_status("RUNNING"):
            self.happen(events.SearchEnded(self.at))
            self.at += 10
        self.happen(self.started())


SELDOM = ("make", "reset", "displace", "exhaust", "idle", "choose", "note", "lose")
OFTEN = ("begin", "report", "report", "save", "end", "settle")


def drive(seed, check=lambda history: None, steps=150):
    history = RandomHistory(seed)
    for _ in range(steps):
        getattr(history, history.dice.choice(SELDOM + OFTEN * 4))()
        check(history)
    return history


def comparable(search):
    """All that a search knows, for an equality in which nan is itself."""
    return repr(
        (search.trials, search.trial_records, search.best, search.ran_s, search.is_exhausted, search.is_complete)
    )


def check_who_waits_and_who_is_settled(history):
    search = history.search
    leaving = {trial for trial, standing in search.trial_records.items() if standing.pending_decision is not None}
    pending = {trial.trial_id for trial in search.trials_with_status("PENDING")}
    waiting = [trial.trial_id for trial in search.waiting_trials()]
    assert sorted(waiting) == sorted(pending - leaving)
    begun = [search.trial_records[trial].num_starts > 0 for trial in waiting]
    assert begun == sorted(begun, reverse=True), "those that began already come first"
    running = {trial.trial_id for trial in search.trials_with_status("RUNNING")}
    assert {act.trial for act in search.ready_decisions()} == leaving - running
    if isinstance(history.events[-1], events.TrialCloned | events.TrialCloneSkipped):
        assert history.events[-1].trial not in leaving, "what was decided is done"
    for trial_id, trial in search.trials.items():
        standing = search.trial_records[trial_id]
        assert trial.trial_id == trial_id
        assert (standing.started_at is not None) == (trial.status == "RUNNING")
        assert (standing.ended_at is not None) == trial.is_over
        assert not (trial.is_over and standing.pending_decision is not None)
        assert len(set(standing.runs)) == len(standing.runs) == standing.num_runs
        assert standing.run == standing.runs[-1]
        initial = (standing.initial.run,) if standing.initial is not None else ()
        assert trial.checkpoint is None or trial.checkpoint.run in (standing.run, *initial)


def check_changes(history, before):
    """A trial that is over stays so until it is reset; its iterations go back only with a clone or a new beginning; its
    time only grows."""
    event = history.events[-1]
    for trial_id, trial in history.search.trials.items():
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


def check_pins(history, needed):
    """What a clone began from is pinned until the clone has saved or is over."""
    search, event = history.search, history.events[-1]
    match event:
        case events.TrialCloned(trial=trial, saved=saved):
            needed[trial] = saved
        case events.TrialSaved(trial=trial) | events.TrialReset(trial=trial, why=""):
            if isinstance(event, events.TrialSaved) or search.trial_records[trial].initial is None:
                needed.pop(trial, None)
    expected = {run: set() for standing in search.trial_records.values() for run in standing.runs}
    for trial, saved in needed.items():
        if not search.trials[trial].is_over:
            expected[saved.run].add(saved.seq)
    assert {run: set(search.pinned_seqs(run)) for run in expected} == expected


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_after_each_event_a_search_is_what_looking_at_all_trials_and_events_gives(seed):
    before, needed = {}, {}

    def check(history):
        check_who_waits_and_who_is_settled(history)
        check_changes(history, before)
        check_pins(history, needed)

    history = drive(seed, check)
    assert history.search.best == find_best(history)


def find_best(history):
    """Of all that was reported, the first of equals."""
    better = max if history.mode == "max" else min
    known, seen = Search(), []
    for event in history.events:
        if isinstance(event, events.TrialReported) and known.is_new_report(event.trial, event.run, event.seq):
            value = known.build_result(event).get("loss")
            if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
                iteration = known.trial_records[event.trial].first_iteration + event.seq
                seen.append(BestReport(event.trial, value, iteration))
        known.apply(event)
        for act in getattr(event, "then", ()):
            known.apply_decision(act)
    return better(seen, key=lambda best: best.value, default=None)


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_the_next_driver_finds_the_search_as_it_was_and_what_ran_waits(seed):
    history = drive(seed)
    for length in [*range(1, len(history.events), 7), len(history.events)]:
        found = replay_search(history.events[:length])
        if length == len(history.events):
            assert comparable(found) == comparable(history.search)
        was = dict(found.trials)
        assert math.isclose(found.elapsed_s(found.last_at), total_driven_s(history.events[:length]))
        found.apply(history.started())
        for trial_id, trial in found.trials.items():
            before = was[trial_id]
            assert trial.status == ("PENDING" if before.status == "RUNNING" else before.status)
            assert (trial.config, trial.iteration) == (before.config, before.iteration)
            assert trial.checkpoint == before.checkpoint
            assert found.trial_records[trial_id].started_at is None
        assert not found.is_complete


def test_the_dice_bring_about_everything_that_can_happen():
    kinds = {type(event) for seed in range(5) for event in drive(seed).events}
    assert kinds == set(typing.get_args(events.Event))
