"""Messages between the driver and a worker: frozen structs, encoded as JSON.

A message from a worker is also an event of the run: `Reported` has the same bytes in the worker's own file, on the wire
and in the journal. A few fields carry a pickle, never loaded from storage: jobs and the user's own filesystem go to the
worker; values and exceptions that JSON cannot represent come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles, ValidationTask
from paceline._core.cursor import Cursors
from paceline._core.reductions import ReductionMark
from paceline._core.system import ProcessStatus

FailureKind = Literal["user", "memory", "mismatch", "storage", "killed", "exited", "engine", "hang", "preempted"]

PROTOCOL_VERSION = 1


class WorkerFailure(msgspec.Struct, frozen=True):
    """Why a worker ended before its function returned."""

    rank: int
    kind: FailureKind
    message: str
    """One line: `ValueError: loss is nan`, or `killed by SIGKILL`."""
    at: float = 0.0
    pid: int = 0
    host: str = ""
    frames: tuple[str, ...] = ()
    """The user's own frames, innermost last, as `train.py:41 in train_fn`."""
    traceback: str = ""
    collateral: bool = False
    """Probably caused by the end of another rank, such as a connection closed by a peer."""
    retriable: bool = True
    transient: bool = False
    """An environmental error (a connection, a file, a timeout) that may not recur."""

    @property
    def is_process_alive(self) -> bool:
        """Whether the worker, or the driver, reported this, not the exit of the process: uploads still go on in it."""
        return bool(self.traceback) or self.kind in ("hang", "mismatch")


# Messages from a worker


class _RankMessage(msgspec.Struct, frozen=True, gc=False):
    attempt: int
    rank: int


class WorkerReady(_RankMessage, frozen=True, tag="worker_ready"):
    """The framework is set up; the user's function runs next."""

    pid: int
    host: str = ""
    address: str = ""
    """Of its machine, as `WorkerInit.node_address`."""
    at: float = 0.0


class Reported(_RankMessage, frozen=True, tag="reported", omit_defaults=True, gc=False):
    seq: int
    metrics: msgspec.Raw
    """Of this rank only."""
    at: float
    where: str
    checkpoint: str | None = None
    """The checkpoint that this rank adds files to, if any; `CheckpointStaged` follows."""
    validation: ValidationTask | None = None
    data: Cursors = ()
    """The positions of this rank's dataset shards."""
    reduce: tuple[ReductionMark, ...] = ()
    """Which metrics are reduced over the ranks, and how."""


class CheckpointStaged(msgspec.Struct, frozen=True, tag="checkpoint_staged"):
    attempt: int
    seq: int
    staged: StagedFiles
    checkpoint: str | None = None
    """The checkpoint, if its report did not announce it: the driver asked for it while the worker waited there."""


class StagingFailed(_RankMessage, frozen=True, tag="staging_failed"):
    """A rank could not make its files durable, so the checkpoint of this report can never be complete."""

    seq: int
    error: str
    is_skipped: bool = False
    """The rank gave it up because it was still writing earlier ones."""


class WorkerHeld(_RankMessage, frozen=True, tag="worker_held"):
    """The worker blocks in its next report until it receives `StopAt`."""

    seq: int
    asks: bool = False
    """Its code checks for preemption notices."""
    num_checks: int = 0
    """How often it has done so since its last report."""
    saves: bool = True
    """Its reports bring a checkpoint when the run stops, as far as is known."""


class ExitDelayed(_RankMessage, frozen=True, tag="exit_delayed"):
    """The function of a worker has returned, but its process cannot exit."""

    held_by: str
    """The threads, processes or exit handlers that it waits for."""
    grace_s: float

    @property
    def message(self) -> str:
        return (
            f"rank {self.rank} returned but did not exit within {self.grace_s:g} s, because it waits for "
            f"{self.held_by}; killing it"
        )


class PreemptionNoticeReceived(msgspec.Struct, frozen=True, tag="preemption_notice_received"):
    """A machine of the run is about to be taken away. Sent by a worker that received the signal, or by the engine."""

    attempt: int
    grace_s: float
    ranks: tuple[int, ...] = ()
    """The workers on that machine, if known."""
    includes_driver: bool = True


class WorkerReturned(_RankMessage, frozen=True, tag="worker_returned"):
    num_reports: int
    where: str = ""
    """Where the last report was made."""
    stopped: bool = False
    """The function did not finish: it was stopped at a report."""
    value: msgspec.Raw = msgspec.Raw(b"null")
    pickled: bytes | None = None


class WorkerFailed(_RankMessage, frozen=True, tag="worker_failed"):
    failure: WorkerFailure
    pickled: bytes | None = None


class Joined(_RankMessage, frozen=True, tag="joined"):
    """A worker is waiting at its `number`-th barrier."""

    number: int
    where: str
    data: bytes = b""
    gathers: bool = False
    """It waits for the data of every rank, not only for that of rank 0."""
    call: str = ""
    """The function that the user called, such as `barrier`. All ranks must call the same."""


class StackFrame(msgspec.Struct, frozen=True, array_like=True):
    module: str
    function: str
    where: str
    """As `train.py:41`."""
    is_user_code: bool = False


class StacksSampled(_RankMessage, frozen=True, tag="stacks_sampled"):
    """What the threads of a worker are doing, sampled from its listener thread: the answer to `SampleStacks`."""

    number: int
    main: tuple[StackFrame, ...] = ()
    """The stack of the main thread, innermost frame last."""
    called: str = ""
    """The native function that the innermost frame is calling, which has no frame of its own: `time.sleep`."""
    has_moved: bool = False
    """The samples show the main thread at more than one line, or in more than one call."""
    is_new_call: bool = False
    """No earlier sample has seen this call from the user's code."""
    others: tuple[tuple[str, tuple[StackFrame, ...]], ...] = ()
    """The stacks of the other threads, by name."""
    process_status: ProcessStatus | None = None


class DataProcessSampled(msgspec.Struct, frozen=True, kw_only=True):
    """What a process that produces rows is doing: see `base.DataInspector`."""

    number: int
    """Of the request."""
    pid: int
    work: int
    """The piece of work that it is at; later ones have higher numbers."""
    stage: str
    """As `map_batches(tokenize)`."""
    unit: str
    """What it reads, as `part-7.parquet`."""
    is_waiting: bool = False
    """It waits for room or for another stage."""
    sample: StacksSampled | None = None
    """None if it did not answer."""
    process_status: ProcessStatus | None = None


class GpuUsage(msgspec.Struct, frozen=True, array_like=True):
    index: int
    """Among all accelerators of the machine."""
    used_bytes: int = 0
    """On the whole device, by all processes."""
    total_bytes: int = 0
    busy: float = -1.0
    """From 0 to 1; negative if the driver does not report it."""


class RankUsage(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has used since its attempt began. Seconds are cumulative, bytes are current."""

    rank: int
    cpu_s: float = 0.0
    """Including all processes that it started."""
    rss_bytes: int = 0
    """Including all processes that it started; memory they share is counted once for each."""
    gpus: tuple[GpuUsage, ...] = ()
    wall_s: float = 0.0
    """From `WorkerInit` until the worker is done. The rest, beyond the four below, was spent in the user's own code."""
    setup_s: float = 0.0
    """Loading the job, forming and leaving the framework's process group, and waiting for the next task."""
    data_s: float = 0.0
    """Waiting for rows or batches, from datasets and from prepared loaders."""
    report_s: float = 0.0
    """In `report()` without a checkpoint."""
    checkpoint_s: float = 0.0
    """In `report()` with a checkpoint: copying, staging, waiting."""
    num_reports: int = 0
    pid: int = 0
    host: str = ""
    device: str = ""
    """Such as `cuda:0`, once it is known; else `cpu`."""


class UsageReported(msgspec.Struct, frozen=True, tag="usage_reported"):
    """The answer to `MeasureUsage`; also sent once unasked, just before the worker reports its end."""

    attempt: int
    usage: RankUsage
    imported: tuple[str, ...] = ()
    """The modules of the backend's `preload_later` that the worker has imported: a restart will need them."""


class ProfileRecorded(_RankMessage, frozen=True, tag="profile_recorded"):
    """The answer to `RecordProfile`: files by name, or the reason why there are none."""

    number: int
    files: tuple[tuple[str, bytes], ...] = ()
    problem: str = ""


class TaskAnswered(_RankMessage, frozen=True, tag="task_answered"):
    """A worker has finished a `RunTask` and waits for the next."""

    number: int
    num_reports: int
    where: str = ""
    value: bytes = b""
    """The pickled return value. It goes only to the caller's memory."""


class WorkersStopped(msgspec.Struct, frozen=True, tag="workers_stopped"):
    """Sent by the engine: all processes of the attempt are gone, and all their messages have been delivered."""

    attempt: int


FromWorker = (
    WorkerReady
    | Reported
    | CheckpointStaged
    | StagingFailed
    | WorkerHeld
    | ExitDelayed
    | PreemptionNoticeReceived
    | WorkerReturned
    | WorkerFailed
    | Joined
    | StacksSampled
    | UsageReported
    | ProfileRecorded
    | TaskAnswered
)


# Messages to a worker


RAY_ROWS_PREFIX = "ray-rows://"
"""Address prefix of datasets whose rows are on a Ray cluster."""


class ShardSpec(msgspec.Struct, frozen=True):
    """A dataset of the run, and how its rows are split among the workers."""

    name: str
    mode: Literal["equal", "exact", "all"] = "equal"


class RayConnectionSpec(msgspec.Struct, frozen=True):
    """How a worker process on a Ray cluster finds the cluster when needed. The process is not a Ray worker."""

    address: str
    namespace: str
    connect_at_once: bool = False
    """Its job contains Ray objects and can be loaded only once Ray is connected."""


class WorkerInit(msgspec.Struct, frozen=True, tag="worker_init"):
    """The first message: the worker's identity and the state of the run."""

    run_name: str
    run_path: str
    attempt: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    first_seq: int
    num_threads: int
    devices: tuple[int, ...] = ()
    """Indices, among the visible ones, of the accelerators assigned to this worker."""
    num_nodes: int = 1
    node_address: str = "127.0.0.1"
    """The address at which workers on other machines reach this one."""
    checkpoints: tuple[CheckpointRecord, ...] = ()
    initial: str | None = None
    """A checkpoint from outside the run, to start from while the run has none of its own."""
    initial_filesystem: bytes | None = None
    """A pickle of its filesystem, if it is not on this machine's."""
    resume: CheckpointRecord | None = None
    score_attribute: str | None = None
    score_order: str = "max"
    global_batch_size: int | None = None
    max_failed_saves: int | None = 0
    skips_saves: bool = False
    """Whether a save is given up if earlier ones are still being written."""
    store: str | None = None
    """The address of the store that holds the run; `run_path` is then a local directory beside it."""
    filesystem: bytes | None = None
    """A pickle of the filesystem that the user passed for the store."""
    validates: bool = False
    shards: tuple[ShardSpec, ...] = ()
    data_address: str = ""
    """Where the rows of these datasets come from."""
    iterators: bytes | None = None
    """A pickle of this worker's iterators by name, if the user's `DataConfig.configure` made them."""
    ray_connection: RayConnectionSpec | None = None
    waits_in_reports: bool = False
    """Each report blocks until its `ReleaseReport` arrives."""
    has_own_directory: bool = False
    """The function runs in the run's `artifacts` directory, not in the script's directory."""
    uploads_artifacts: bool = False
    """What it leaves there is uploaded to the store."""
    purpose: str = ""
    trial_id: str = ""
    user_metadata: str = ""
    """The trainer's `metadata`, as JSON."""
    log_files: tuple[str, ...] = ()
    """Files in the run's directory for this worker's standard output and error, beside its log."""
    log_level: str = ""
    """The level of our logger; empty: as it is."""
    preemption_grace_s: float | None = None
    """How long the machine stays after a signal; None: what the settings say."""
    trial_name: str = ""
    protocol: int = PROTOCOL_VERSION


class CheckpointCommitted(msgspec.Struct, frozen=True, tag="checkpoint_committed"):
    record: CheckpointRecord
    removed: tuple[int, ...] = ()


class CheckpointValidated(msgspec.Struct, frozen=True, tag="checkpoint_validated"):
    """A validation has ended, successfully or not; `record` replaces the checkpoint's previous record."""

    record: CheckpointRecord
    removed: tuple[int, ...] = ()


class CheckpointsRemoved(msgspec.Struct, frozen=True, tag="checkpoints_removed"):
    """Nothing pins these checkpoints any longer, and retention does not keep them."""

    removed: tuple[int, ...]


class CheckpointRefused(msgspec.Struct, frozen=True, tag="checkpoint_refused"):
    seq: int
    error: str
    rank: int | None = None
    """The rank whose files could not be staged; None if the commit itself failed."""
    is_skipped: bool = False
    """No failure: the rank gave it up because it was still writing earlier ones."""


class PreemptionNotice(msgspec.Struct, frozen=True):
    """Which workers lose their machine, and when (`deadline`, in seconds since the epoch)."""

    ranks: tuple[int, ...]
    deadline: float
    nodes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The machines and the workers on each, if there are several."""


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Answer with `WorkerHeld`, and let no report return before `StopAt` arrives."""


class StopAt(msgspec.Struct, frozen=True, tag="stop_at"):
    """Report `seq` is the last one."""

    seq: int
    save: bool = True
    """Whether there is time for a checkpoint at that report."""
    preemption: PreemptionNotice | None = None
    """The preemption that causes the stop, if any."""
    num_checks: int = 0
    """How many checks after report `seq - 2` some rank has made in vain: later ones return the notice, on all ranks."""


class ReleaseReport(msgspec.Struct, frozen=True, tag="release_report"):
    """Lets report `seq` return, in a worker that waits in its reports."""

    seq: int
    save: bool = False
    """First make a checkpoint, if it has none and can be made: see `checkpoint_on_stop`."""


class Release(msgspec.Struct, frozen=True, tag="release"):
    """All ranks have reached barrier `number`. Carries the data of rank 0 or, for a gather, of every rank."""

    number: int
    data: bytes = b""
    gathered: tuple[bytes, ...] = ()


class SampleStacks(msgspec.Struct, frozen=True, tag="sample_stacks"):
    """Answer with `StacksSampled`."""

    number: int


class MeasureUsage(msgspec.Struct, frozen=True, tag="measure_usage"):
    """Answer with `UsageReported`."""


class RecordProfile(msgspec.Struct, frozen=True, tag="record_profile"):
    """Profile this worker for `seconds`, and answer with `ProfileRecorded`."""

    number: int
    seconds: float


class RunTask(msgspec.Struct, frozen=True, tag="run_task"):
    """Run a pickled job in a waiting worker, and answer with `TaskAnswered`. An empty job: there are no more tasks."""

    number: int
    job: bytes = b""


class ExitWorker(msgspec.Struct, frozen=True, tag="exit_worker"):
    """The run has received everything this worker had to send."""


ToWorker = (
    WorkerInit
    | CheckpointCommitted
    | CheckpointValidated
    | CheckpointsRemoved
    | CheckpointRefused
    | Hold
    | StopAt
    | ReleaseReport
    | Release
    | SampleStacks
    | MeasureUsage
    | RecordProfile
    | RunTask
    | ExitWorker
)

encode_message = msgspec.json.Encoder().encode
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.json.Decoder(FromWorker).decode
decode_to_worker: Callable[[bytes], ToWorker] = msgspec.json.Decoder(ToWorker).decode
