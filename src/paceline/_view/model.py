"""What is shown of a run, as plain values: `--json` prints them, the dashboard sends them.

Times are seconds since the epoch, durations are seconds. Texts come from users' runs: whoever shows them as markup
has to escape them. The types of the dashboard's page, in `frontend/src/api.ts`, are these.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

State = Literal[
    "starting",  # workers are being started, or started again
    "running",
    "waiting",  # for room
    "stopping",
    "validating",  # trained; validations are left
    "complete",
    "failed",
    "stopped",  # by a person, a stopper or a scheduler
    "preempted",
    "lost",  # its journal ends in the middle, and nobody holds the run any more
]
ENDED: frozenset[State] = frozenset({"complete", "failed", "stopped", "preempted", "lost"})

WorkerState = Literal["starting", "running", "hangs", "returned", "failed", "gone"]

Value = float | int | str | bool | None
"""Of a metric, flat: nested ones have names like `eval/loss`. What is nan or infinite is the text `nan`, `inf` or
`-inf`, since JSON has no numbers for them."""


class Best(msgspec.Struct, frozen=True):
    metric: str
    mode: Literal["min", "max"]
    value: float
    step: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a list of runs."""

    id: str
    """Its path below the root that was listed, with `/`; of the root itself, `.`."""
    name: str
    path: str
    """All of it."""
    kind: Literal["run", "search", "trial"]
    state: State
    began_at: float
    ended_at: float | None = None
    updated_at: float
    attempt: int = 0
    num_workers: int = 0
    num_reports: int = 0
    """Of a search: how many trials have ended."""
    num_checkpoints: int = 0
    num_failures: int = 0
    metrics: dict[str, Value] = msgspec.field(default_factory=dict)
    """Reported last."""
    best: Best | None = None
    progress: float | None = None
    """From 0 to 1, where it can be known."""
    left_s: float | None = None
    steps_per_s: float | None = None
    """Reports, over the last while."""
    epochs_per_s: float | None = None
    failure: str | None = None
    """The message of what ended it, or last failed."""
    hang: str | None = None
    """What is said of ranks that stand still now."""
    search: str | None = None
    """Of a trial: the id of its search."""


class GpuNow(msgspec.Struct, frozen=True):
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
    """Cores in use, between the last two measurements."""
    rss_bytes: int | None = None
    gpus: tuple[GpuNow, ...] = ()
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
    """It came first; the others are echoes of it, or came after."""


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    verdict: str
    action: str
    at: float
    passed_after_s: float | None = None
    stacks: str | None = None
    """The file, below the run."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    began_at: float
    ended_at: float | None = None
    size: int
    resumed_from: str | None = None
    """A checkpoint's name."""
    ending: str = ""
    """`complete`, `failed`, `stopped`, `preempted`, `resized`, `lost`; empty while it goes on."""
    first_report: int = 0
    last_report: int = 0
    failures: tuple[ShownFailure, ...] = ()
    hangs: tuple[Hang, ...] = ()
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
    """Whether it is still there."""
    is_best: bool = False
    is_latest: bool = False
    metrics: dict[str, Value] = msgspec.field(default_factory=dict)


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time went, in seconds. All but `wall_s` sum to it; those of workers are means over the ranks."""

    wall_s: float = 0.0
    starting_s: float = 0.0
    """From asking for workers until the user's function was called."""
    data_s: float = 0.0
    compute_s: float = 0.0
    """In the user's own code."""
    report_s: float = 0.0
    checkpoint_s: float = 0.0
    between_s: float = 0.0
    """No workers: ended, waited for, checkpoints verified; or no driver at all."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
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
    """0: of a validation."""
    rank: int
    path: str
    num_bytes: int
    name: str
    """`attempt 1, rank 0`."""


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the timeline."""

    at: float
    kind: Literal["driver", "attempt", "checkpoint", "failure", "hang", "preemption", "stop", "resize", "end", "other"]
    text: str
    attempt: int = 0
    rank: int | None = None


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """All about one run but its points."""

    summary: Summary
    attempts: tuple[Attempt, ...] = ()
    checkpoints: tuple[ShownCheckpoint, ...] = ()
    spent: Spent = Spent()
    stages: tuple[Stage, ...] = ()
    limited_by: str | None = None
    """The stage of a dataset that the others wait for; `the consumer` where the workers are what all wait for."""
    metric_names: tuple[str, ...] = ()
    """Those that have numbers."""
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    scaling: dict[str, Any] = msgspec.field(default_factory=dict)
    run_config: dict[str, Any] = msgspec.field(default_factory=dict)
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    code: dict[str, Any] = msgspec.field(default_factory=dict)
    """`script`, `function`, `git` (`commit`, `branch`, `dirty`), `sources` (text by file)."""
    logs: tuple[LogFile, ...] = ()
    files: tuple[ShownFile, ...] = ()
    """Profiles and stacks that somebody asked for."""
    timeline: tuple[Happened, ...] = ()
    version: int = 0
    """Grows whenever something is new."""


class Points(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one metric, at most so many: each stands for all around it, whose least and greatest are told."""

    name: str
    x: list[float]
    """Steps (numbers of reports), or seconds since the run began."""
    y: list[float | None]
    """The mean; None where all are nan."""
    low: list[float | None]
    high: list[float | None]
    num_points: int
    """That there are in the range."""
    whole: bool
    """Each point is one report."""


class UseSeries(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank used over time."""

    rank: int
    attempt: int
    at: list[float]
    cpu: list[float]
    rss_bytes: list[int]
    gpu_used_bytes: list[list[int]] = msgspec.field(default_factory=list)
    """By GPU."""
    gpu_busy: list[list[float | None]] = msgspec.field(default_factory=list)


class LogLine(msgspec.Struct, frozen=True):
    offset: int
    """In bytes, of its beginning."""
    text: str


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    lines: tuple[LogLine, ...]
    before: int | None
    """Where to go on towards the beginning; None at it."""
    after: int
    """Where to go on when more is written."""
    num_bytes: int


class Changed(msgspec.Struct, frozen=True):
    key: str
    a: Any
    """None where it has none."""
    b: Any


class CodeChange(msgspec.Struct, frozen=True):
    file: str
    diff: str
    """As `diff -u` tells it."""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two runs."""

    a: Summary
    b: Summary
    config: tuple[Changed, ...] = ()
    scaling: tuple[Changed, ...] = ()
    environment: tuple[Changed, ...] = ()
    code: tuple[CodeChange, ...] = ()
    metrics: tuple[Changed, ...] = ()
    """Those reported last: also the equal ones."""


class SearchDetail(msgspec.Struct, frozen=True, kw_only=True):
    summary: Summary
    metric: str | None
    mode: str | None
    trials: tuple[Summary, ...] = ()
    configs: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """By the id of a trial."""
    parallel: dict[str, Any] | None = None
    """As `paceline.tune.plots` gives them."""
    importance: dict[str, Any] | None = None
    curves: dict[str, Any] | None = None


encode = msgspec.json.Encoder().encode
