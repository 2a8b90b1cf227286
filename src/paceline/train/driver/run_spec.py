"""What a run is made of: what was asked for (`RunSpec`), what it acts through, and who may observe or stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline._core.errors import StorageError
from paceline._core.system import Clock, SystemClock
from paceline._engine.base import Engine, WorkerResources
from paceline._engine.local.devices import DeviceShare
from paceline._storage.files import Files, LocalFiles
from paceline._worker.main import Job
from paceline.train.callbacks import TrainRunContext
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig

if TYPE_CHECKING:
    from paceline._control.controller import Controller, Observer
    from paceline._control.extensions import Interrupts
    from paceline._control.recovery import RecoveredRun
    from paceline._control.worker_sync import TaskQueue
    from paceline._engine.local.launchers import InlineLauncher
    from paceline.train.driver.datasets import DatasetSpec
    from paceline.train.driver.execution_target import ExecutionTarget
    from paceline.train.driver.validation import ValidationConfig


@dataclass(frozen=True)
class ValidationSpec:
    config: ValidationConfig
    pickled_job: bytes
    """The function and its arguments, pickled."""
    share: DeviceShare


@dataclass(frozen=True)
class RunSpec:
    """What a trainer was asked to run, checked and ready to drive."""

    job_parts: Job
    """The user's function, its config, and the backend around it."""
    pickled_job: bytes
    """The job, pickled."""
    run_config: RunConfig
    run_context: TrainRunContext
    scaling_config: ScalingConfig
    target: ExecutionTarget
    is_inline: bool
    """Run the function in this process, for a debugger."""
    initial_checkpoint: Checkpoint | None
    pickled_filesystem: bytes | None = None
    """The user's filesystem for the run, pickled."""
    validation: ValidationSpec | None = None
    datasets: DatasetSpec | None = None
    waits_in_reports: bool = False
    """Workers wait in `report()` until it is released: `Controller.release_report`."""
    has_own_directory: bool = False
    """Workers run in a directory of the run, not in that of the script."""
    uploads_artifacts: bool = False
    """What workers leave in that directory is uploaded to the store."""
    pinned: tuple[int, ...] = ()
    """When a run is reopened: the numbers of its checkpoints that other runs start from."""
    purpose: str = ""
    """What the run is made for; a run made for another purpose is not resumed."""
    trial_id: str = ""
    """The id of the trial that the run belongs to, if any."""
    stop: Any = None
    """`RunConfig(stop=...)` for a run that is not a trial: see `stop_condition`."""
    user_metadata: str = ""
    """The trainer's `metadata`, as JSON."""
    trial_name: str = ""
    """The name that the user gave that trial."""
    metadata: bytes = b""
    """The run's metadata, if it had to be collected before the run is driven: see `run_metadata`."""

    @property
    def needs(self) -> WorkerResources:
        return WorkerResources(self.scaling_config.num_cpus_per_worker, self.scaling_config.num_gpus_per_worker)


@dataclass(frozen=True)
class RunEnvironment:
    """What a run acts through: engine, files, clock."""

    make_engine: Callable[[InlineLauncher | None], Engine] | None = None
    """None: the engine of the run's execution target."""
    wrap_engine: Callable[[Engine], Engine] = lambda engine: engine
    """Wraps the engine."""
    files: Files = field(default_factory=LocalFiles)
    clock: Clock = field(default_factory=SystemClock)
    controller_id: str = ""
    """For a driver that is restarted when it is lost: an id that stays the same across restarts."""


@dataclass(frozen=True)
class RunHooks:
    """Who may observe, stop or pause a run, and give it tasks."""

    observer_factories: tuple[Callable[[Callable[[], None]], Observer], ...] = ()
    """Make observers; each factory gets a function that asks the run to stop at the next report."""
    make_interrupts: Callable[[Controller], Interrupts] | None = None
    """Make the source of stop requests while the run is driven; None: signals to this process."""
    on_recovered: Callable[[RecoveredRun], None] | None = None
    """Called with the recovered run before it is driven."""
    task_queue: TaskQueue | None = None
    """The tasks of persistent workers, which stay idle between tasks."""


class DifferentRunError(StorageError):
    """The directory already contains a different run."""
