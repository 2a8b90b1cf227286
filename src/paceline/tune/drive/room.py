"""The room of a search: what its engine has, the part of it that each trial holds, and the site of a trial's run there.

`take` and `free` are called by the loop of the search alone; a part's `site` by the thread that drives the trial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from paceline._core.choice import chosen
from paceline._engine.local.devices import Machine, this_machine
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.site import LocalSite, Say, Site
from paceline.tune.drive.admission import Part, Room
from paceline.tune.drive.packing import Node
from paceline.tune.trainables.planned import TrialNeeds


class TrialPart(Protocol):
    """What a trial holds, from `take` to `free`."""

    @property
    def note(self) -> str:
        """For a person, where the trial has something else than it asked for; else empty."""
        ...

    def site(self, scaling: ScalingConfig, run_config: RunConfig) -> Site:
        """Where a run of the trial has its workers; checked. `ValueError` for what can never be had there."""
        ...


class SearchRoom(Protocol):
    def take(self, needs: TrialNeeds) -> TrialPart | None:
        """All that a trial needs, or nothing: then it is tried again when another trial has let its part go, and now
        and then."""
        ...

    def free(self, part: TrialPart) -> None:
        """Once the trial's run has been driven to its end, whatever that was."""
        ...

    def refusal(self, needs: TrialNeeds) -> str | None:
        """Why such a trial can never be run here; None if it can."""
        ...

    def described(self) -> str:
        """`2 cores, 1 GPU`"""
        ...

    def refresh(self) -> None:
        """Take in what has changed meanwhile. It returns at once, and may be called at every turn of a loop.

        `ClusterLostError` where all that there was is gone.
        """
        ...

    def is_lost_by(self, error: BaseException) -> bool:
        """Whether what a trial's run failed with is the loss of all that there was, and not the trial's to answer."""
        ...

    def close(self) -> None: ...


def room_of(run_config: RunConfig, say: Say = lambda _: None) -> SearchRoom:
    """What the engine of a search has, by `RunConfig(engine=...)` and what else says which one that is.

    `say` is told, from any thread, what a person should know: trials that have other than they asked for, or wait.
    """
    choice = chosen(run_config.engine)
    if choice.engine == "ray":
        from paceline.tune.drive.cluster_room import ClusterRoom

        return ClusterRoom(run_config, choice, say)
    return LocalRoom(this_machine(), say)


class LocalRoom:
    """This machine. What it has does not change."""

    def __init__(self, machine: Machine, say: Say = lambda _: None) -> None:
        self._machine = machine
        self._say = say
        self._said: set[str] = set()
        self._room = Room([Node("", machine.num_cores, len(machine.gpus))], shares_cores=True)

    def take(self, needs: TrialNeeds) -> LocalPart | None:
        part = self._room.take(_counted_here(needs))
        if part is None:
            return None
        if part.note and part.note not in self._said:
            self._said.add(part.note)
            self._say(part.note)
        return LocalPart(part, self._machine)

    def free(self, part: TrialPart) -> None:
        assert isinstance(part, LocalPart)
        self._room.free(part.part)

    def refusal(self, needs: TrialNeeds) -> str | None:
        return self._room.refusal(_counted_here(needs))

    def described(self) -> str:
        return self._room.described()

    def refresh(self) -> None:
        pass

    def is_lost_by(self, error: BaseException) -> bool:
        return False

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class LocalPart:
    part: Part
    whole: Machine
    """Of which it is a part."""

    @property
    def note(self) -> str:
        return self.part.note

    def site(self, scaling: ScalingConfig, run_config: RunConfig) -> Site:
        site = LocalSite(scaling, run_config, self.machine(scaling))
        site.check()
        return site

    def machine(self, scaling: ScalingConfig) -> Machine:
        """What a run has here: the cores and GPUs of the part, and whose each GPU is."""
        gpus = sorted({gpu for place in self.part.places for gpu in place.gpus})
        seats = tuple(tuple(map(gpus.index, place.gpus)) for place in self.part.places)
        if scaling.sizes[-1] == 1 and len(seats[:1]) and len(seats[0]) < scaling.num_gpus_per_worker:
            seats = (tuple(range(len(gpus))),)  # One process for all bundles, which has what they have together.
        return Machine(self._num_cores(len(gpus)), tuple(self.whole.gpus[gpu] for gpu in gpus), seats)

    def _num_cores(self, num_gpus: int) -> int:
        """Those that it asked for; if it asked for GPUs alone, what there is for each of these."""
        if self.part.num_cores:
            return max(1, int(self.part.num_cores))
        return max(1, self.whole.num_cores * num_gpus // max(1, len(self.whole.gpus)))


def _counted_here(needs: TrialNeeds) -> TrialNeeds:
    """Resources of a cluster have no meaning on this machine: a script for one runs here as well."""
    return replace(needs, bundles=tuple(replace(bundle, others=()) for bundle in needs.bundles))
