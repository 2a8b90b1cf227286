"""The state of one trial, as schedulers, searchers and stoppers see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from paceline.train.placement_group import PlacementGroupFactory

from paceline._core.arguments import flatten_dict

Status = Literal["PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"]


@dataclass(frozen=True)
class TrialCheckpoint:
    """A committed checkpoint of a trial."""

    run: str
    """The name of the run that committed it, in the search's directory."""
    seq: int
    """The number of the report that brought it, in that run."""
    name: str
    iteration: int
    """The trial's `training_iteration` at that report."""


@dataclass(eq=False)
class Trial:
    """The state of a trial. A scheduler gets it as it is at one moment; a callback gets one object, kept up to date.

    Two are equal if they are of the same trial, so that a trial can be the key of a dict.
    """

    PENDING: ClassVar[Status] = "PENDING"
    RUNNING: ClassVar[Status] = "RUNNING"
    PAUSED: ClassVar[Status] = "PAUSED"
    TERMINATED: ClassVar[Status] = "TERMINATED"
    ERROR: ClassVar[Status] = "ERROR"

    trial_id: str
    """The search's own id and its number, such as `a1b2c_00012`: it stays the same when the search is resumed."""
    config: Mapping[str, Any]
    status: Status = "PENDING"
    last_result: Mapping[str, Any] | None = None
    """The metrics of its last report, with `training_iteration`, `time_total_s`, `trial_id` and `config`."""
    checkpoint: TrialCheckpoint | None = None
    """The last committed one."""
    iteration: int = 0
    """How many reports it has made, including those before the checkpoint it was cloned from."""
    why: str = ""
    """Why it was stopped or paused, or the error it failed with."""
    lineage: tuple[TrialCheckpoint, ...] = field(default=())
    """The checkpoints of other trials it was cloned from, in order."""
    local_path: str = ""
    """The directory of its run on the machine of the driver; for a search in a store, one that is not uploaded."""
    trial_name: str = ""
    """The name from `TuneConfig(trial_name_creator)`, else such as `train_fn_a1b2c_00012`."""
    trainable_name: str = ""

    resources: PlacementGroupFactory | None = None
    """What it has, or is to have when it runs again; None if that is not known, as in a search that is only read."""

    def __post_init__(self) -> None:
        self.trial_name = self.trial_name or self._default_name

    @property
    def _default_name(self) -> str:
        return f"{self.trainable_name.strip('<>') or 'trial'}_{self.trial_id}"  # Not `<lambda>`.

    @property
    def placement_group_factory(self) -> PlacementGroupFactory | None:
        return self.resources

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trial) and other.trial_id == self.trial_id

    def __hash__(self) -> int:
        return hash(self.trial_id)

    def __str__(self) -> str:
        return self.trial_name

    @property
    def label(self) -> str:
        """What messages call it: the name that the user gave it, else its id."""
        return self.trial_name if self.trial_name != self._default_name else self.trial_id

    def is_finished(self) -> bool:
        return self.is_over

    @property
    def experiment_tag(self) -> str:
        """Its number and its configuration, as `3_lr=0.1,model/layers=2`."""
        values = (f"{name}={value}" for name, value in self.evaluated_params.items())
        return f"{int(self.trial_id.rpartition('_')[2])}_{','.join(values)}"

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """Its configuration, flattened: `model/layers`."""
        return flatten_dict(self.config)

    @property
    def logdir(self) -> str:
        return self.local_path

    path = logdir

    @property
    def is_over(self) -> bool:
        return self.status in ("TERMINATED", "ERROR")
