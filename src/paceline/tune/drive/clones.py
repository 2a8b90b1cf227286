"""Trials that are to begin anew from another's checkpoint, and what their donors keep for them meanwhile.

A donor that is under way could delete the checkpoint by its own retention between the decision and the start of the
clone. So it is asked to keep it, and the clone is made when it has said that it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.tune.drive.events import Act, Event, TrialCloned, TrialStayed
from paceline.tune.drive.runner import PinsTold, TrialRun
from paceline.tune.drive.state import Search, run_name
from paceline.tune.trial import Saved


@dataclass
class Live:
    """A trial whose run is under way."""

    run: TrialRun
    part: Any
    pinned: frozenset[int]
    """Of its checkpoints, those that it is known to keep for others."""
    asked_to_stop: bool = False


class Clones:
    def __init__(
        self,
        search: Search,
        live: Mapping[str, Live],
        happen: Callable[[Event], None],
        wall: Callable[[], float],
    ) -> None:
        self._search = search
        self._live = live
        self._happen = happen
        self._wall = wall
        self._asked: dict[str, tuple[str, Saved]] = {}
        """Trials that are to be cloned: their donors, and what these were asked to keep for them."""

    def are_awaited_by(self, trial_id: str) -> bool:
        """Whether a trial waits for what its donor says."""
        return trial_id in self._asked

    def begin(self, act: Act) -> None:
        """Let a trial begin anew from its donor's last checkpoint, once that is sure to stay."""
        donor = self._search.trials.get(act.donor)
        if donor is None or donor.checkpoint is None:
            why = f"trial {act.donor} has no committed checkpoint to clone"
            self._happen(TrialStayed(act.trial, self._wall(), why))
            return
        saved, live = donor.checkpoint, self._live.get(act.donor)
        if live is not None and live.run.run == saved.run and saved.seq not in live.pinned:
            self._asked[act.trial] = (act.donor, saved)
            self._ask(live)
            return
        self._make(act, saved)

    def told(self, told: PinsTold) -> None:
        """A donor has said what it keeps: those whose checkpoint is among it are cloned; the others ask again, since
        theirs was gone before it could be kept."""
        if (live := self._live.get(told.trial_id)) is not None:
            live.pinned = frozenset(told.seqs)
        for trial_id, (donor, saved) in list(self._asked.items()):
            if donor != told.trial_id:
                continue
            del self._asked[trial_id]
            act = self._search.standing[trial_id].leaving
            if live is not None and act is not None and act.do == "exploit" and saved.seq in told.seqs:
                self._make(act, saved)

    def ended(self, trial_id: str, run: str) -> None:
        """A run is no longer under way: it keeps what it has, and those who wait for its word need not."""
        self.told(PinsTold(trial_id, run, ()))

    def saved(self, initial: Saved) -> None:
        """A clone has a checkpoint of its own now: its donor need not keep the one that it began from."""
        for live in self._live.values():
            if live.run.run == initial.run:
                self._ask(live)

    def _make(self, act: Act, saved: Saved) -> None:
        run = run_name(act.trial, self._search.standing[act.trial].num_lives)
        self._happen(TrialCloned(act.trial, run, act.donor, saved, act.config, self._wall()))

    def _ask(self, live: Live) -> None:
        """For all that clones began from and have nothing newer than, and what others are about to begin from."""
        run = live.run.run
        asked = {saved.seq for _, saved in self._asked.values() if saved.run == run}
        live.run.pin(tuple(sorted({*self._search.pinned(run), *asked})))
