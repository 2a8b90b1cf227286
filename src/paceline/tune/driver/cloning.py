"""Clones trials from another trial's checkpoint, and pins the donor's checkpoint meanwhile.

The retention of a running donor could delete the checkpoint between the decision and the start of the clone. So the
donor is asked to pin it, and the clone is made once the donor confirms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.tune.driver.events import Event, TrialCloned, TrialCloneSkipped, TrialDecision
from paceline.tune.driver.search_state import Search
from paceline.tune.driver.trial_run import TrialRun
from paceline.tune.trial import TrialCheckpoint


@dataclass
class LiveTrial:
    """A trial with an active run."""

    run: TrialRun
    allocation: Any
    pinned_seqs: frozenset[int]
    """Checkpoints of this run that are confirmed to be kept for others."""
    is_stop_requested: bool = False


@dataclass(eq=False)
class CloneCoordinator:
    _search: Search
    _live: Mapping[str, LiveTrial]
    _record_event: Callable[[Event], None]
    _wall: Callable[[], float]
    awaiting_donor: dict[str, tuple[str, TrialCheckpoint]] = field(default_factory=dict)
    """Trials waiting to be cloned, with their donor and the checkpoint it was asked to keep."""

    def start_clone(self, decision: TrialDecision) -> None:
        """Restart a trial from its donor's last checkpoint, once that checkpoint is pinned."""
        donor = self._search.trials.get(decision.donor)
        if donor is None or donor.checkpoint is None:
            why = f"trial {decision.donor} has no committed checkpoint to clone"
            self._record_event(TrialCloneSkipped(decision.trial, self._wall(), why))
            return
        saved, live = donor.checkpoint, self._live.get(decision.donor)
        if live is not None and live.run.run == saved.run and saved.seq not in live.pinned_seqs:
            self.awaiting_donor[decision.trial] = (decision.donor, saved)
            self._request_pins(live)
            return
        self._record_clone(decision, saved)

    def on_pins_confirmed(self, donor_id: str, seqs: tuple[int, ...]) -> None:
        """Clone the trials whose checkpoint the donor has pinned; the others ask again, as theirs is deleted.

        A donor whose run has ended is not live; it keeps what it has.
        """
        if (live := self._live.get(donor_id)) is not None:
            live.pinned_seqs = frozenset(seqs)
        for trial_id, (donor, saved) in list(self.awaiting_donor.items()):
            if donor != donor_id:
                continue
            del self.awaiting_donor[trial_id]
            decision = self._search.trial_records[trial_id].pending_decision
            if live is not None and decision is not None and decision.do == "exploit" and saved.seq in seqs:
                self._record_clone(decision, saved)

    def release_donor_pin(self, initial: TrialCheckpoint) -> None:
        """Let the donor drop the checkpoint a clone started from, now that the clone has its own."""
        for live in self._live.values():
            if live.run.run == initial.run:
                self._request_pins(live)

    def _record_clone(self, decision: TrialDecision, saved: TrialCheckpoint) -> None:
        run = self._search.next_run_name(decision.trial)
        self._record_event(TrialCloned(decision.trial, run, decision.donor, saved, decision.config, self._wall()))

    def _request_pins(self, live: LiveTrial) -> None:
        """Pin the checkpoints that clones without a newer one started from, and those about to be cloned."""
        run = live.run.run
        requested = {saved.seq for _, saved in self.awaiting_donor.values() if saved.run == run}
        live.run.pin(tuple(sorted({*self._search.pinned_seqs(run), *requested})))
