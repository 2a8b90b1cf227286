"""All that crosses between the driver and a worker, as frozen structs in JSON.

What a worker says is at the same time an event in the life of the run: `Reported` is one line of bytes that stands
alike in the worker's own file, on the wire and in the journal. A pickle is carried in few places, and never from
storage: jobs and the user's own filesystem, from driver to worker, and a value or exception that has no plain form,
from worker to driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from paceline._core.cursor import Cursors
from paceline._core.reductions import Mark
from paceline._core.system import Condition

FailureKind = Literal["user", "memory", "mismatch", "storage", "killed", "exited", "engine", "hang", "preempted"]

CheckpointStatus = Literal["COMMITTED", "PENDING_VALIDATION", "VALIDATED", "VALIDATION_TIMEOUT", "VALIDATION_FAILED"]

PROTOCOL = 1


class FileEntry(msgspec.Struct, frozen=True):
    path: str
    size: int
    hash: str


class Staged(msgspec.Struct, frozen=True):
    """One rank's part of a checkpoint, durable but not yet visible."""

    rank: int
    files: tuple[FileEntry, ...]
    in_place: bool = False
    """The files already lie in the checkpoint's own directory; only the manifest is missing."""


class ValidationTask(msgspec.Struct, frozen=True):
    """What the validation of one checkpoint was asked for with; what it leaves out, the trainer says."""

    kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    timeout_s: float | None = None


class CheckpointRecord(msgspec.Struct, frozen=True):
    """A committed checkpoint: what the journal, the manifest and a worker know of it."""

    seq: int
    name: str
    attempt: int
    metrics: msgspec.Raw
    """As reported; once it is validated, with the metrics of the validation. The manifest keeps the former."""
    num_bytes: int = 0
    validation: ValidationTask | None = None
    status: CheckpointStatus = "COMMITTED"
    data: Cursors = ()
    """Where the datasets of the run stood."""


class Failure(msgspec.Struct, frozen=True):
    """Why one worker ended before its function returned."""

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
    """Probably the echo of another rank's end, such as a connection closed by a peer."""
    retriable: bool = True
    transient: bool = False
    """An error of the world around (a connection, a file, a time-out), which may be gone the next time."""


# What a worker says


class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """The framework is set up; the user's function is next."""

    attempt: int
    rank: int
    pid: int


class Reported(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    attempt: int
    rank: int
    seq: int
    metrics: msgspec.Raw
    """This rank's own."""
    at: float
    where: str
    checkpoint: str | None = None
    """The name of the checkpoint that this rank adds files to, if it does; `CheckpointStaged` follows."""
    validation: ValidationTask | None = None
    data: Cursors = ()
    """Where this rank's parts of the datasets stand."""
    reduce: tuple[Mark, ...] = ()
    """Which of the metrics are reduced over the ranks, and how."""


class CheckpointStaged(msgspec.Struct, frozen=True, tag=True):
    attempt: int
    seq: int
    staged: Staged


class StagingFailed(msgspec.Struct, frozen=True, tag=True):
    """A rank could not make its files durable: the checkpoint of this number can never be whole."""

    attempt: int
    rank: int
    seq: int
    error: str


class WorkerHeld(msgspec.Struct, frozen=True, tag=True):
    """The worker will not get past its next report until it is told where to stop."""

    attempt: int
    rank: int
    seq: int
    asks: bool = False
    """Its code looks for notices of preemption."""


class PreemptionTold(msgspec.Struct, frozen=True, tag=True):
    """A machine of the run is about to be taken away. Said by a worker that got the signal, or by the engine."""

    attempt: int
    grace_s: float
    ranks: tuple[int, ...] = ()
    """The workers on that machine, where they are known."""
    whole: bool = True
    """The driver is on it too."""


class WorkerReturned(msgspec.Struct, frozen=True, tag=True):
    attempt: int
    rank: int
    num_reports: int
    where: str = ""
    """Where the last report was made."""
    stopped: bool = False
    """The function did not get to its end: it was asked to stop at a report."""
    value: msgspec.Raw = msgspec.Raw(b"null")
    pickled: bytes | None = None


class WorkerFailed(msgspec.Struct, frozen=True, tag=True):
    attempt: int
    rank: int
    failure: Failure
    pickled: bytes | None = None


class Joined(msgspec.Struct, frozen=True, tag=True):
    """A worker stands at its `number`-th barrier and waits for the others."""

    attempt: int
    rank: int
    number: int
    where: str
    data: bytes = b""
    gathers: bool = False
    """It waits for what every rank brings, not for that of rank 0 alone."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One call on the stack of a thread."""

    module: str
    function: str
    where: str
    """As `train.py:41`."""
    own: bool = False
    """In the user's own files."""


class Sampled(msgspec.Struct, frozen=True, tag=True):
    """What a worker's threads are doing, looked at from its listening thread: the answer to `Sample`."""

    attempt: int
    rank: int
    number: int
    main: tuple[Frame, ...] = ()
    """The main thread, innermost last."""
    called: str = ""
    """What the innermost of these frames calls that has no frame, being no Python: `time.sleep`."""
    moved: bool = False
    """The main thread was seen at more than one place, or in more than one call."""
    fresh: bool = False
    """What the user's code calls has not been seen by an earlier sample."""
    others: tuple[tuple[str, tuple[Frame, ...]], ...] = ()
    """The other threads by name."""
    condition: Condition | None = None


class GpuUse(msgspec.Struct, frozen=True, array_like=True):
    """Of one accelerator."""

    index: int
    """Among those that the machine has."""
    used_bytes: int = 0
    """On the whole of it, whoever uses it."""
    total_bytes: int = 0
    busy: float = -1.0
    """From 0 to 1; below 0 where the driver does not say."""


class RankUse(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has used since its attempt began: seconds are sums, bytes are of now."""

    rank: int
    cpu_s: float = 0.0
    """With all processes that it started."""
    rss_bytes: int = 0
    """Likewise; what they hold together counts for each of them."""
    gpus: tuple[GpuUse, ...] = ()
    wall_s: float = 0.0
    """From when the worker was told who it is until it was done. What of it is none of the four below was spent in the
    user's own code."""
    setup_s: float = 0.0
    """Around the user's function: the job loaded, the framework's group formed and left again. Of a worker that takes
    orders, also standing by for the next."""
    data_s: float = 0.0
    """Waiting for rows or batches: of datasets, and of loaders that were prepared."""
    report_s: float = 0.0
    """In `report()`, without what follows."""
    checkpoint_s: float = 0.0
    """In `report()` with a checkpoint: copied, staged, waited for."""
    num_reports: int = 0
    pid: int = 0
    host: str = ""
    device: str = ""
    """As `cuda:0`, once it is known; else `cpu`."""


class Used(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Measure`; said unasked once, right before the worker says that it is done."""

    attempt: int
    use: RankUse


class Profiled(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Profile`: files by name, or why there are none."""

    attempt: int
    rank: int
    number: int
    files: tuple[tuple[str, bytes], ...] = ()
    problem: str = ""


class Answered(msgspec.Struct, frozen=True, tag=True):
    """A worker has done what `Order` asked for, and stands by for the next."""

    attempt: int
    rank: int
    number: int
    num_reports: int
    where: str = ""
    """Where the last report was made."""
    value: bytes = b""
    """What the function returned, as a pickle: it goes to the caller's memory, and nowhere else."""


class WorkersStopped(msgspec.Struct, frozen=True, tag=True):
    """Said by the engine: all processes of the attempt are gone, and all they said has been heard."""

    attempt: int


FromWorker = (
    WorkerReady
    | Reported
    | CheckpointStaged
    | StagingFailed
    | WorkerHeld
    | PreemptionTold
    | WorkerReturned
    | WorkerFailed
    | Joined
    | Sampled
    | Used
    | Profiled
    | Answered
)


# What a worker is told


ON_CLUSTER = "ray-rows://"
"""How the address of datasets begins whose rows lie on a Ray cluster."""


class Shard(msgspec.Struct, frozen=True):
    """A dataset of the run, and what a worker gets of it."""

    name: str
    mode: Literal["equal", "exact", "all"] = "equal"


class Guest(msgspec.Struct, frozen=True):
    """A worker's process on a Ray cluster, which is none of Ray's own: where it finds the cluster when it needs it."""

    address: str
    namespace: str
    at_once: bool = False
    """Its job carries something of Ray's, and can be loaded only when Ray is connected."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first message: who this worker is and where the run stands."""

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
    """Indices, among the visible ones, of the accelerators given to this worker."""
    num_nodes: int = 1
    node_address: str = "127.0.0.1"
    """Where the workers on other machines reach this one."""
    checkpoints: tuple[CheckpointRecord, ...] = ()
    initial: str | None = None
    """A checkpoint from outside the run, to begin from while the run has none of its own."""
    initial_filesystem: bytes | None = None
    """A pickle of the one that it is on, where that is not this machine's."""
    resume: CheckpointRecord | None = None
    score_attribute: str | None = None
    score_order: str = "max"
    global_batch_size: int | None = None
    max_failed_saves: int | None = 0
    store: str | None = None
    """The address of the store that the run is kept in; `run_path` is then a directory of this machine beside it."""
    filesystem: bytes | None = None
    """A pickle of the filesystem that the user gave for it."""
    validates: bool = False
    """Whether the trainer said how a checkpoint is validated."""
    shards: tuple[Shard, ...] = ()
    data_address: str = ""
    """Where the rows of these datasets are had."""
    guest: Guest | None = None
    waits_in_reports: bool = False
    """Each report returns once `Proceed` has come for it."""
    purpose: str = ""
    """What the run is made for, where that was said."""
    protocol: int = PROTOCOL


class CheckpointCommitted(msgspec.Struct, frozen=True, tag=True):
    record: CheckpointRecord
    removed: tuple[int, ...] = ()


class CheckpointValidated(msgspec.Struct, frozen=True, tag=True):
    """A validation has ended, well or not: here is the checkpoint as it counts from now on."""

    record: CheckpointRecord
    removed: tuple[int, ...] = ()


class CheckpointsRemoved(msgspec.Struct, frozen=True, tag=True):
    """What kept these is over, and retention has no use for them."""

    removed: tuple[int, ...]


class CheckpointRefused(msgspec.Struct, frozen=True, tag=True):
    seq: int
    error: str
    rank: int | None = None
    """Whose files could not be staged; None where the commit itself failed."""


class Notice(msgspec.Struct, frozen=True):
    """Which workers lose their machine, and when, in seconds since the epoch."""

    ranks: tuple[int, ...]
    deadline: float
    nodes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The machines and the workers on each, where there are several."""


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Answer with `WorkerHeld`, and let no report return before `StopAt` has come."""


class StopAt(msgspec.Struct, frozen=True, tag=True):
    """Report `seq` is the last."""

    seq: int
    save: bool = True
    """Whether there is time for a checkpoint there."""
    preemption: Notice | None = None
    """Why, if it is because a machine is taken away."""


class Proceed(msgspec.Struct, frozen=True, tag=True):
    """Of a worker that waits in its reports: report `seq` may return."""

    seq: int


class Release(msgspec.Struct, frozen=True, tag=True):
    """Everybody has come to barrier `number`; here is what rank 0 brought, or, where it was gathered, every rank."""

    number: int
    data: bytes = b""
    gathered: tuple[bytes, ...] = ()


class Sample(msgspec.Struct, frozen=True, tag=True):
    """Answer with `Sampled`."""

    number: int


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Answer with `Used`."""


class Profile(msgspec.Struct, frozen=True, tag=True):
    """Look at what this worker does for so long, and answer with `Profiled`."""

    number: int
    seconds: float


class Order(msgspec.Struct, frozen=True, tag=True):
    """To a worker that stands by: do this, and answer with `Answered`. Without anything to do it is the last."""

    number: int
    job: bytes = b""
    """A pickle, as that of the run is."""


class Exit(msgspec.Struct, frozen=True, tag=True):
    """The run has taken in all this worker had to say."""


ToWorker = (
    Begin
    | CheckpointCommitted
    | CheckpointValidated
    | CheckpointsRemoved
    | CheckpointRefused
    | Hold
    | StopAt
    | Proceed
    | Release
    | Sample
    | Measure
    | Profile
    | Order
    | Exit
)

encode = msgspec.json.Encoder().encode
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.json.Decoder(FromWorker).decode
decode_to_worker: Callable[[bytes], ToWorker] = msgspec.json.Decoder(ToWorker).decode
