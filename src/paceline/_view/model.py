"""What is shown of a run, as plain values: `--json` prints them, the dashboard sends them.

Times are seconds since the epoch, durations are seconds. Texts come from users' runs: escape them before using them as
markup. `frontend/src/api.ts` is generated from these: `make frontend`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from paceline._view.pace import PaceEstimate

State = Literal[
    "starting",  # workers are starting or restarting
    "running",
    "waiting",  # for resources, or before it retries
    "stopping",
    "validating",  # training is done; validations remain
    "finished",
    "failed",
    "stopped",  # by a person, a stopper or a scheduler
    "preempted",
    "lost",  # its journal breaks off, and no driver holds the run
]
ENDED: frozenset[State] = frozenset({"finished", "failed", "stopped", "preempted", "lost"})

WorkerState = Literal["starting", "running", "hangs", "returned", "failed", "gone"]

Value = float | int | str | bool | None
"""A metric's value. Nested metrics have flat names like `eval/loss`. JSON has no nan or infinity, so these are the
texts `nan`, `inf` and `-inf`."""


class BestMetric(msgspec.Struct, frozen=True):
    metric: str
    mode: Literal["min", "max"]
    value: float
    step: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a list of runs."""

    id: str
    """Path below the listed root, with `/`; `.` for the root itself."""
    name: str
    """Of a trial: what `TuneConfig(trial_name_creator)` returned, else the name of its run."""
    path: str
    kind: Literal["run", "search", "trial"]
    state: State
    began_at: float
    ended_at: float | None = None
    updated_at: float
    attempt: int = 0
    num_workers: int = 0
    num_reports: int = 0
    """For a search: the number of trials that have ended."""
    num_checkpoints: int = 0
    num_failures: int = 0
    metrics: dict[str, Value] = msgspec.field(default_factory=dict)
    """The latest report."""
    best: BestMetric | None = None
    progress: float | None = None
    """From 0 to 1, if known."""
    left_s: float | None = None
    steps_per_s: float | None = None
    """Recent reports per second."""
    epochs_per_s: float | None = None
    failure: str | None = None
    """Message of the failure that ended it, or of the last one."""
    hang: str | None = None
    """Description of ranks that are hanging now."""
    search: str | None = None
    """For a trial: the id of its search."""


class ShownGpu(msgspec.Struct, frozen=True):
    index: int
    used_bytes: int
    total_bytes: int
    busy: float | None


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    state: WorkerState
    pid: int = 0
    host: str = ""
    device: str = ""
    num_reports: int = 0
    cpu: float | None = None
    """Cores in use between the last two measurements."""
    rss_bytes: int | None = None
    gpus: tuple[ShownGpu, ...] = ()
    failure: str | None = None


class ShownFailure(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    kind: str
    message: str
    at: float
    host: str = ""
    pid: int = 0
    frames: tuple[str, ...] = ()
    traceback: str = ""
    is_cause: bool = False
    """It came first; the others are secondary failures."""


class ShownHang(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    verdict: str
    action: str
    at: float
    passed_after_s: float | None = None
    stacks: str | None = None
    """Path of the file, below the run."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    began_at: float
    ended_at: float | None = None
    size: int
    resumed_from: str | None = None
    ending: str = ""
    """`finished`, `failed`, `stopped`, `preempted`, `resized`, `lost`; empty while the attempt is running."""
    first_report: int = 0
    last_report: int = 0
    failures: tuple[ShownFailure, ...] = ()
    hangs: tuple[ShownHang, ...] = ()
    workers: tuple[Worker, ...] = ()


class ShownCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seq: int
    attempt: int
    path: str
    num_bytes: int
    at: float
    status: str
    kept: bool
    """Whether it still exists."""
    is_best: bool = False
    is_latest: bool = False
    metrics: dict[str, Value] = msgspec.field(default_factory=dict)


class TimeBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time went, in seconds. The other fields add up to `wall_s`; those of workers are means over ranks."""

    wall_s: float = 0.0
    starting_s: float = 0.0
    """From requesting workers until the user's function was called."""
    data_s: float = 0.0
    compute_s: float = 0.0
    """In the user's own code."""
    report_s: float = 0.0
    checkpoint_s: float = 0.0
    between_s: float = 0.0
    """Without workers: they ended, were waited for, or checkpoints were verified; or there was no driver."""


class SaveBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """What the checkpoints took to save, in seconds: the mean of all, each part that of the slowest rank.

    Hashing runs beside writing, and all but `copy_s` beside the training if saves are asynchronous.
    """

    num_saves: int
    copy_s: float = 0.0
    write_s: float = 0.0
    hash_s: float = 0.0
    sync_s: float = 0.0
    upload_s: float = 0.0
    commit_s: float = 0.0
    num_bytes: int = 0
    """Written to the disk by a save, of all ranks."""
    disk_bytes_per_s: float | None = None
    """Of writing and syncing; None if no save was large enough to tell, or none wrote files itself."""
    best_bytes_per_s: float | None = None
    """Of the fastest save."""


class ShownStage(msgspec.Struct, frozen=True, kw_only=True):
    dataset: str
    name: str
    num_rows: int
    num_bytes: int
    busy_s: float
    waited_for_input_s: float
    waited_for_room_s: float
    limits: bool


class ShownFile(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    path: str
    rank: int
    at: float
    seconds: float = 0.0
    num_bytes: int = 0


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    attempt: int
    """0 for a validation."""
    rank: int
    path: str
    num_bytes: int
    name: str
    """`attempt 1, rank 0`."""


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    kind: Literal["driver", "attempt", "checkpoint", "failure", "hang", "preemption", "stop", "resize", "end", "other"]
    text: str
    attempt: int = 0
    rank: int | None = None


class RunSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a run looks like: everything except its points."""

    summary: Summary
    pace: PaceEstimate = PaceEstimate()
    attempts: tuple[Attempt, ...] = ()
    checkpoints: tuple[ShownCheckpoint, ...] = ()
    spent: TimeBreakdown = TimeBreakdown()
    saves: SaveBreakdown | None = None
    """None if no save was measured, as in runs of earlier versions."""
    stages: tuple[ShownStage, ...] = ()
    limited_by: str | None = None
    """The dataset stage that the others wait for; `the consumer` if all wait for the workers."""
    metric_names: tuple[str, ...] = ()
    """Metrics that have numbers."""
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    scaling: dict[str, Any] = msgspec.field(default_factory=dict)
    run_config: dict[str, Any] = msgspec.field(default_factory=dict)
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    code: dict[str, Any] = msgspec.field(default_factory=dict)
    """`script`, `function`, `git` (`commit`, `branch`, `dirty`), `sources` (text by file)."""
    logs: tuple[LogFile, ...] = ()
    files: tuple[ShownFile, ...] = ()
    """Profiles and stacks made on request."""
    timeline: tuple[TimelineEntry, ...] = ()
    version: int = 0
    """Grows with every change."""


class Points(msgspec.Struct, frozen=True, kw_only=True):
    """A limited number of points of one metric; each stands for its neighbours and has their minimum and maximum."""

    name: str
    x: list[float]
    """Steps (report numbers), or seconds since the start of the run."""
    y: list[float | None]
    """The mean; None if all values are nan."""
    low: list[float | None]
    high: list[float | None]
    num_points: int
    """How many points the range has before downsampling."""
    whole: bool
    """Each point is one report."""


class UsageSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one rank over time."""

    rank: int
    attempt: int
    at: list[float]
    cpu: list[float]
    rss_bytes: list[int]
    gpu_used_bytes: list[list[int]] = msgspec.field(default_factory=list)
    gpu_busy: list[list[float | None]] = msgspec.field(default_factory=list)


class LogLine(msgspec.Struct, frozen=True):
    offset: int
    """Byte offset of its start."""
    text: str


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    lines: tuple[LogLine, ...]
    before: int | None
    """Offset to continue from towards the start of the log; None at the start."""
    after: int
    """Offset to continue from when more is written."""
    num_bytes: int


class ValueChange(msgspec.Struct, frozen=True):
    key: str
    a: Any
    """None if the run does not have it."""
    b: Any


class CodeChange(msgspec.Struct, frozen=True):
    file: str
    diff: str
    """In the format of `diff -u`."""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two runs."""

    a: Summary
    b: Summary
    config: tuple[ValueChange, ...] = ()
    scaling: tuple[ValueChange, ...] = ()
    environment: tuple[ValueChange, ...] = ()
    code: tuple[CodeChange, ...] = ()
    metrics: tuple[ValueChange, ...] = ()
    """The latest values, including equal ones."""


class SearchDetail(msgspec.Struct, frozen=True, kw_only=True):
    summary: Summary
    metric: str | None
    mode: str | None
    trials: tuple[Summary, ...] = ()
    configs: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """By trial id."""
    parallel: dict[str, Any] | None = None
    """As returned by `paceline.tune.plots`."""
    importance: dict[str, Any] | None = None
    curves: dict[str, Any] | None = None


encode = msgspec.json.Encoder().encode
