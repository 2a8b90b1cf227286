"""A Ray cluster as the room of a search.

The search counts for itself what its trials hold, on the nodes where they were found to lie; where they will lie is up
to Ray, which places each group whole or not at all. The cluster is looked at again every second, from another thread:
nodes come and go, and others use some of it. Trials that wait long for their places hold nothing, and count as nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from paceline._core import settings
from paceline._core.choice import Choice
from paceline._core.errors import ControllerError
from paceline._engine.base import Engine, Needs
from paceline._engine.local.inline import InlineLauncher
from paceline._engine.ray import room as ray_room
from paceline._engine.ray.connect import connected, gcs_address
from paceline._engine.ray.look import looked
from paceline._engine.ray.presence import ClusterLostError, Leavable, Presence
from paceline._engine.ray.travel import Luggage, luggage
from paceline.train.cluster import ClusterSite
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.site import LocalSite, Say, Site
from paceline.tune.drive.admission import Part, Room
from paceline.tune.drive.packing import Node
from paceline.tune.drive.room import TrialPart
from paceline.tune.trainables.planned import Bundle, TrialNeeds

log = logging.getLogger("paceline")

_LOOK_EVERY_S = 1.0
_PATIENCE_S = 30.0
"""A trial that has waited so long for its places keeps no other one out."""
_MAX_ASKED = 8
"""Trials at a time that wait for nodes which an autoscaler is to bring."""
_OF_BUNDLES = ("CPU", "GPU")


class _TrialSite(ClusterSite):
    """Says aloud what its engine has to say, for what places are waited for: of a trial's run little else is shown."""

    aloud: Say

    def engine(self, inline: InlineLauncher | None, say: Say, beside: Needs | None = None) -> Engine:
        return super().engine(inline, lambda text: self.aloud(f"{self._config.name}: {text}"), beside)


@dataclass
class ClusterPart:
    part: Part
    choice: Choice
    luggage: Luggage
    say: Say
    presence: Presence
    sites: list[ClusterSite] = field(default_factory=list)
    """Of the trial's runs, the last of which may be under way."""

    @property
    def note(self) -> str:
        return self.part.note

    def site(self, scaling: ScalingConfig, run_config: RunConfig) -> Site:
        if scaling.num_workers == 0:
            here = LocalSite(scaling, run_config)
            here.check()
            return here
        most = max(1, len(self.part.bundles))
        site = _TrialSite(scaling, run_config, self.choice, luggage=self.luggage, most=most)
        site.aloud = self.say
        self.presence.asked(site.check)
        self.sites.append(site)
        return site

    def places(self) -> list[str]:
        """The nodes on which its workers are, or will be. It may ask the cluster."""
        engines = [engine for site in self.sites[-1:] for engine in site.engines[-1:]]
        return [node for engine in engines for node in engine.places()]

    def waits(self) -> bool:
        return any(engine.waits for site in self.sites[-1:] for engine in site.engines[-1:])


class ClusterRoom:
    def __init__(self, run_config: RunConfig, choice: Choice, say: Say = lambda _: None) -> None:
        connected(choice.address)
        self._choice = choice
        self._say = say
        self._luggage = luggage(run_config.worker_runtime_env)
        self._room = Room((), where="the cluster")
        self._parts: dict[int, ClusterPart] = {}
        self._waits_since: dict[int, float] = {}
        self._in_use: dict[str, Bundle] = {}
        """By node, what others were seen to use at the last look."""
        self._threads = Leavable()
        self._looking: Future[_Look] | None = None
        self._looked_at = 0.0
        self._silent = False
        """The last look failed, and that was said."""
        self._presence = Presence(gcs_address(), settings.load().cluster_patience_s)
        try:
            look = self._presence.asked(lambda: _look({}))
        except BaseException:
            self._presence.close()
            raise
        self._cluster = look.cluster
        self._take_in(look)

    def take(self, needs: TrialNeeds) -> ClusterPart | None:
        part = self._room.take(needs)
        if part is None and self._cluster.grows and self._room.num_nowhere < _MAX_ASKED:
            part = self._room.take(needs, beyond=True)
        if part is None:
            return None
        self._parts[part.number] = made = ClusterPart(part, self._choice, self._luggage, self._say, self._presence)
        return made

    def free(self, part: TrialPart) -> None:
        assert isinstance(part, ClusterPart)
        self._room.free(part.part)
        del self._parts[part.part.number]

    def refusal(self, needs: TrialNeeds) -> str | None:
        if self._cluster.grows:
            return None
        found = self._room.refusal(needs)
        return f"{found}, or add nodes: this cluster has no autoscaler that would bring some" if found else None

    def described(self) -> str:
        return self._room.described()

    def refresh(self) -> None:
        self._presence.raise_if_lost()
        now = time.monotonic()
        if self._looking is None and now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._looking = self._threads.submit(_look, dict(self._parts))
        elif self._looking is not None and self._looking.done():
            looking, self._looking = self._looking, None
            problem = looking.exception()
            if problem is None:
                self._take_in(looking.result())
            elif not self._silent:  # Of a head that is lost the presence tells.
                log.warning("the cluster does not say what it has: %s", str(problem).partition("\n")[0])
            self._silent = problem is not None

    def is_lost_by(self, error: BaseException) -> bool:
        cause = error.controller_failure if isinstance(error, ControllerError) else error
        return isinstance(cause, ClusterLostError)

    def close(self) -> None:
        self._presence.close()

    def _take_in(self, look: _Look) -> None:
        cluster, lies = look.cluster, look.lies
        ours: dict[str, list[Bundle]] = {}
        for number, nodes in lies.items():
            # Of those that were freed meanwhile as well: the cluster was as it was then.
            for node, bundle in zip(nodes, look.parts[number].part.bundles, strict=False):
                ours.setdefault(node, []).append(bundle)
        seen = {node.id: used_by_others(node, ours.get(node.id, [])) for node in cluster.nodes}
        # The cluster tells of what was let go a moment late: what is used now was so at the last look already.
        in_use = {name: _least(used, self._in_use.get(name, used)) for name, used in seen.items()}
        self._cluster, self._in_use = cluster, seen
        now = [node_of(node, in_use[node.id]) for node in cluster.nodes]
        self._room.look(now, lies, self._tired_of_waiting())

    def _tired_of_waiting(self) -> list[int]:
        now = time.monotonic()
        waiting = [number for number, part in self._parts.items() if part.waits()]
        self._waits_since = {number: self._waits_since.get(number, now) for number in waiting}
        return [number for number, since in self._waits_since.items() if now - since >= _PATIENCE_S]


@dataclass(frozen=True)
class _Look:
    cluster: ray_room.Cluster
    parts: Mapping[int, ClusterPart]
    lies: Mapping[int, list[str]]
    """By the number of a part, the nodes on which it was."""


def _look(parts: Mapping[int, ClusterPart]) -> _Look:
    """In a thread of its own."""
    cluster = looked()
    return _Look(cluster, parts, {number: part.places() for number, part in parts.items()})


def node_of(node: ray_room.Node, in_use: Bundle) -> Node:
    others = {name: amount for name, amount in node.total.items() if name not in _OF_BUNDLES}
    return Node(node.id, node.total.get("CPU", 0.0), int(node.total.get("GPU", 0.0)), others, in_use)


def used_by_others(node: ray_room.Node, ours: list[Bundle]) -> Bundle:
    """What is taken on a node beyond what we have there."""
    have: dict[str, float] = {"CPU": 0.0, "GPU": 0.0}
    for bundle in ours:
        for name, amount in (("CPU", bundle.num_cpus), ("GPU", bundle.num_gpus), *bundle.others):
            have[name] = have.get(name, 0.0) + amount
    used = {
        name: max(0.0, round(total - node.free.get(name, 0.0) - have.get(name, 0.0), 4))
        for name, total in node.total.items()
    }
    return _bundle(used)


def _bundle(amounts: Mapping[str, float]) -> Bundle:
    others = tuple((name, amount) for name, amount in sorted(amounts.items()) if name not in _OF_BUNDLES)
    return Bundle(amounts.get("CPU", 0.0), amounts.get("GPU", 0.0), others)


def _least(one: Bundle, other: Bundle) -> Bundle:
    known = dict(other.others)
    return replace(
        one,
        num_cpus=min(one.num_cpus, other.num_cpus),
        num_gpus=min(one.num_gpus, other.num_gpus),
        others=tuple((name, min(amount, known.get(name, 0.0))) for name, amount in one.others),
    )
