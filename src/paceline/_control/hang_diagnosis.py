"""Turns the activities of the ranks of a hung run into one sentence: which rank is where, and who waits for whom.

Pure. `hang_detector.py` decides when to sample, and whether the ranks stand still at all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline._control.run import PendingCheckpoint
from paceline._core.system import ProcessStatus
from paceline._engine.messages import DataProcessSampled, StackFrame, StacksSampled

Activity = Literal[
    "collective",
    "gpu",
    "barrier",
    "report",
    "saving",
    "storage",
    "loader",
    "rows",
    "stopped",
    "mute",
    "cut off",
    "other",
]

WAITS_FOR_OTHERS = ("collective", "gpu", "barrier", "report", "rows")
"""Activities in which a rank may be blocked by another: do not blame it while there is another candidate."""

_CONTEXT = "paceline._worker.context"
_UPLOAD = "paceline._worker.upload"
_STORAGE = "paceline._storage."
_COLLECTIVE = ("torch.distributed", "torch.nn.parallel.distributed")
_BACKWARD = "torch.autograd.graph"
_JAX = ("jax",)
_LOADER = "torch.utils.data"
_DATASET = "paceline.data"
_GPU = ("item", "cpu", "tolist", "synchronize", "nonzero", "numpy")
_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy", "IPython.core.debugger", "pudb")
_MAX_CLAUSES = 4


@dataclass(frozen=True)
class RankActivity:
    """What one rank is doing."""

    rank: int
    doing: Activity
    where: str
    """The user's line, as `train.py:41 in train_fn`; for a rank that does not answer, the line of its last report."""
    call: str
    silent_s: float
    frames: tuple[str, ...] = ()
    """The user's own frames, innermost last."""
    is_standing: bool = True
    is_computing: bool = False
    host: str = ""
    """Where it is; empty if all ranks are on one host."""


@dataclass(frozen=True)
class DataActivity:
    """What a data process is doing that stands still."""

    pid: int
    stage: str
    """As `map_batches(tokenize)`."""
    unit: str
    process: RankActivity
    """The same for the process, as if it were a rank."""


@dataclass(frozen=True)
class HangContext:
    """What the run knows besides the activities of its ranks."""

    storage: str
    pending: tuple[PendingCheckpoint, ...] = ()
    behind: dict[int, int] = field(default_factory=dict)
    """Ranks that have not made the report of the first pending checkpoint, and their report counts."""
    committing: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()
    data: tuple[DataActivity, ...] = ()
    """Data processes that stand still, and do not wait for others."""


@dataclass(frozen=True)
class HangDiagnosis:
    rank: int
    sentence: str
    frames: tuple[str, ...]
    is_curable: bool = True


def infer_activity(
    rank: int, sample: StacksSampled | None, condition: ProcessStatus | None, last: str, silent_s: float
) -> RankActivity:
    """Infer what a rank is doing from its sample, or from the lack of one."""
    if sample is None:
        if condition is not None and condition.state in ("T", "t"):
            return RankActivity(rank, "stopped", last, "", silent_s)
        if condition is not None and condition.is_host_silent:
            return RankActivity(rank, "cut off", last, "", silent_s)
        waiting_in = condition.kernel_function if condition is not None and condition.state in ("S", "D") else ""
        return RankActivity(rank, "mute", last, waiting_in, silent_s)
    frames = sample.main
    user_indices = [at for at, frame in enumerate(frames) if frame.is_user_code]
    below = frames[user_indices[-1] + 1 :] if user_indices else frames
    lines = tuple(f"{frames[at].where} in {frames[at].function}" for at in user_indices)
    doing, call = _classify_activity(frames, below, user_indices, sample.called)
    return RankActivity(rank, doing, lines[-1] if lines else "", call, silent_s, lines)


def infer_data_activity(sample: DataProcessSampled) -> DataActivity:
    activity = infer_activity(0, sample.sample, sample.process_status, "", 0.0)
    return DataActivity(sample.pid, sample.stage, sample.unit, activity)


def is_debugged(sample: StacksSampled | None, condition: ProcessStatus | None) -> bool:
    """Whether somebody debugs this process."""
    if condition is not None and condition.is_traced:
        return True
    return sample is not None and any(_is_within(frame.module, _DEBUGGERS) for frame in sample.main)


def is_waiting_for_validation(sample: StacksSampled | None) -> bool:
    """Whether a rank asks for all its checkpoints, which may include waiting for their validation."""
    return sample is not None and any((f.module, f.function) == (_CONTEXT, "checkpoints") for f in sample.main)


def diagnose_hang(activities: Sequence[RankActivity], context: HangContext) -> HangDiagnosis:
    """Find out who blocks the run. `activities` has every rank that has not returned."""
    standing = [activity for activity in activities if activity.is_standing]
    culprits = [activity for activity in standing if activity.doing not in WAITS_FOR_OTHERS]
    if culprits:
        waiting = [activity for activity in standing if activity not in culprits]
        pronoun = "it" if len(culprits) == 1 else "them"
        sentence = "; ".join([*_describe_culprits(culprits, context), *_describe_waiters(waiting, pronoun)])
        return HangDiagnosis(culprits[0].rank, sentence, culprits[0].frames)
    for_rows = [activity for activity in standing if activity.doing == "rows"]
    if for_rows and context.data:
        return _diagnose_data(for_rows, standing, context)
    in_report = [activity for activity in standing if activity.doing == "report"]
    if in_report and context.committing:
        return _diagnose_slow_storage(in_report, context)
    if in_report and context.behind:
        return _diagnose_missing_reports(in_report, activities, context)
    return _diagnose_mismatch(standing, activities, context)


def _classify_activity(
    frames: Sequence[StackFrame], below: Sequence[StackFrame], user_indices: Sequence[int], called: str
) -> tuple[Activity, str]:
    ours = {frame.function for frame in below if frame.module == _CONTEXT}
    if any(_is_within(frame.module, (_UPLOAD, _STORAGE)) for frame in below):
        is_saving = bool(ours) or any(frame.module == _UPLOAD for frame in below)
        return "saving" if is_saving else "storage", ""
    if ours & {"report", "finish", "checkpoints"}:
        return "report", ""
    if "join" in ours:
        return "barrier", ""
    call = f"{below[0].module}.{below[0].function}" if below else called
    if below and _is_within(below[-1].module, _COLLECTIVE):
        names = (f.function for f in below if _is_within(f.module, _COLLECTIVE) and f.function != "wrapper")
        return "collective", next(names, call)
    if below and below[-1].module == _BACKWARD:
        return "collective", "backward"
    if not below and called.rpartition(".")[2] == "wait":  # torch's Work, which has no Python frame
        return "collective", called
    # JAX communicates while it computes: a rank that waits for its own values may wait for another rank.
    if called.rpartition(".")[2] == "block_until_ready" or (below and _is_within(below[-1].module, _JAX)):
        return "collective", call
    if user_indices and any(_is_within(frame.module, (_LOADER,)) for frame in frames[user_indices[0] :]):
        return "loader", call
    if any(_is_within(frame.module, (_DATASET,)) for frame in below):
        return "rows", ""
    if called.rpartition(".")[2] in _GPU or (below and _is_within(below[-1].module, ("torch.cuda",))):
        return "gpu", call
    return "other", call


def _is_within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(package.rstrip(".") + ".") for package in packages)


def _group_by(activities: Sequence[RankActivity], key: Callable[[RankActivity], object]) -> list[list[RankActivity]]:
    groups: dict[object, list[RankActivity]] = {}
    for activity in activities:
        groups.setdefault(key(activity), []).append(activity)
    return list(groups.values())


def _describe_culprits(activities: Sequence[RankActivity], context: HangContext) -> list[str]:
    """One clause per activity, with all ranks that share it."""
    groups = _group_by(activities, lambda activity: (activity.doing, activity.where, activity.call))
    clauses = [_describe_group(group, context) for group in groups[:_MAX_CLAUSES]]
    return clauses + ([f"{len(groups) - _MAX_CLAUSES} more are stuck elsewhere"] if len(groups) > _MAX_CLAUSES else [])


def _describe_group(group: Sequence[RankActivity], context: HangContext) -> str:
    activity = group[0]
    is_on_one_host = activity.host and all(each.host == activity.host for each in group)
    who = format_ranks(each.rank for each in group) + (f" on {activity.host}" if is_on_one_host else "")
    have = f"{who} {'has' if len(group) == 1 else 'have'}"
    span = f"for {min(each.silent_s for each in group):.0f} s"
    last = f"; its last report was made at {activity.where}" if activity.where else ""
    match activity.doing:
        case "stopped":
            return f"{who} {'is' if len(group) == 1 else 'are'} stopped by a signal (SIGSTOP), silent {span}{last}"
        case "mute":
            kernel = f", waiting in the kernel ({activity.call})" if activity.call else ""
            return f"{have} been silent {span}: code outside Python holds the GIL{kernel}{last}"
        case "cut off":
            whose = "its host does" if len(group) == 1 else "their hosts do"
            return f"{have} been silent {span}: {whose} not answer either{last}"
        case "storage":
            return f"{have} been stuck {span} waiting for storage{_format_location(activity)}"
        case "saving":
            seq = f" of report {context.pending[0].seq}" if context.pending else ""
            where = f"{context.storage}{_format_location(activity)}"
            return f"{have} been stuck {span} storing the checkpoint{seq} at {where}"
        case "loader":
            return f"{have} been stuck in the data loader{_format_location(activity)} {span}"
    call = f" ({activity.call})" if activity.call else ""
    return f"{have} been {'computing' if activity.is_computing else 'stuck'}{_format_location(activity)}{call} {span}"


def _describe_waiters(activities: Sequence[RankActivity], whom: str) -> list[str]:
    groups = _group_by(activities, lambda activity: (activity.doing, activity.where))
    return [
        f"{format_ranks(each.rank for each in group)} {'waits' if len(group) == 1 else 'wait'} for "
        f"{whom} {_describe_wait(group[0])}"
        for group in groups[:_MAX_CLAUSES]
    ]


def _subject_with_have(group: Sequence[RankActivity]) -> str:
    return f"{format_ranks(each.rank for each in group)} {'has' if len(group) == 1 else 'have'}"


def _describe_wait(activity: RankActivity) -> str:
    call = f" ({activity.call})" if activity.call else ""
    places = {
        "collective": f"in a collective{call}",
        "gpu": f"for a GPU{call}",
        "barrier": "in paceline's barrier or broadcast",
        "report": "in report()",
        "rows": "for rows of a dataset",
    }
    return f"{places[activity.doing]}{_format_location(activity)}"


def _format_location(activity: RankActivity) -> str:
    return f" at {activity.where}" if activity.where else " outside the train function"


def _diagnose_data(
    for_rows: Sequence[RankActivity], standing: Sequence[RankActivity], context: HangContext
) -> HangDiagnosis:
    groups: dict[object, list[DataActivity]] = {}
    for each in context.data:
        groups.setdefault((each.stage, each.process.doing, each.process.where, each.process.call), []).append(each)
    # Since when a process stands is not known; since when nothing arrives is.
    span = f"for {min(each.silent_s for each in for_rows):.0f} s"
    clauses = [_describe_data(group, span) for group in list(groups.values())[:_MAX_CLAUSES]]
    pronoun = "it" if len(context.data) == 1 else "them"
    sentence = "; ".join([*clauses, *_describe_waiters(standing, pronoun)])
    return HangDiagnosis(for_rows[0].rank, sentence, context.data[0].process.frames)


def _describe_data(group: Sequence[DataActivity], span: str) -> str:
    """One clause about data processes that stand at the same place."""
    first, process = group[0], group[0].process
    pids = ", ".join(str(each.pid) for each in group[:_MAX_CLAUSES]) + (", ..." if len(group) > _MAX_CLAUSES else "")
    who, have, are = (
        (f"the data process {pids}", "has", "is") if len(group) == 1 else (f"data processes {pids}", "have", "are")
    )
    doing = f"reading {first.unit}" if first.stage == "read" else f"in {first.stage}, on {first.unit},"
    match process.doing:
        case "stopped":
            return f"{who} {are} stopped by a signal (SIGSTOP) {doing} {span}"
        case "mute":
            kernel = f", waiting in the kernel ({process.call})" if process.call else ""
            return f"{who} {have} been silent {doing} {span}: code outside Python holds the GIL{kernel}"
    where = f" at {process.where}" if process.where else ""
    call = f" ({process.call})" if process.call else ""
    return f"{who} {have} been stuck {doing}{where}{call} {span}"


def _diagnose_slow_storage(in_report: Sequence[RankActivity], context: HangContext) -> HangDiagnosis:
    activity = in_report[0]
    sentence = (
        f"the checkpoint of report {context.committing[0]} has waited {activity.silent_s:.0f} s for storage at "
        f"{context.storage}; {'; '.join(_describe_waiters(in_report, 'it'))}"
    )
    # The driver's own call to storage does not return: new workers would wait for it just as the old ones do.
    return HangDiagnosis(activity.rank, sentence, activity.frames, is_curable=False)


def _diagnose_missing_reports(
    in_report: Sequence[RankActivity], activities: Sequence[RankActivity], context: HangContext
) -> HangDiagnosis:
    activity, pending = in_report[0], context.pending[0]
    by_rank = {each.rank: each for each in activities}
    clauses = []
    for rank, made in list(context.behind.items())[:_MAX_CLAUSES]:
        other = by_rank.get(rank)
        does = f" and waits {_describe_wait(other)}" if other is not None and other.doing in WAITS_FOR_OTHERS else ""
        clauses.append(f"rank {rank} has made {made}{does}")
    sentence = (
        f"{_subject_with_have(in_report)} waited {activity.silent_s:.0f} s in report {pending.seq} with a checkpoint "
        f"at {activity.where or pending.where}: {', '.join(clauses)}. "
        "Every rank must call report() the same number of times"
    )
    return HangDiagnosis(activity.rank, sentence, activity.frames)


def _diagnose_mismatch(
    standing: Sequence[RankActivity], activities: Sequence[RankActivity], context: HangContext
) -> HangDiagnosis:
    """All ranks wait: either one has left, or they wait for different things."""
    activity = min(standing, key=lambda each: (sum(other.where == each.where for other in standing), each.rank))
    by_wait = _group_by(standing, _describe_wait)
    groups = [f"{_subject_with_have(group)} waited {_describe_wait(group[0])}" for group in by_wait]
    if len(groups) > _MAX_CLAUSES:
        groups[_MAX_CLAUSES:] = [f"{len(groups) - _MAX_CLAUSES} more places"]
    span = f"{min(each.silent_s for each in standing):.0f} s"
    if context.returned:
        returned = format_ranks(context.returned)
        sentence = f"{' and '.join(groups)} for {span}, but {returned} returned without it"
    elif len(activities) > len(standing):
        moving = format_ranks(each.rank for each in activities if not each.is_standing)
        sentence = f"{' and '.join(groups)} for {span}, while {moving} continued without it"
    elif len(groups) > 1:
        sentence = f"ranks wait for each other at places that do not match: {', '.join(groups)}, for {span}"
    else:
        sentence = f"{groups[0]} for {span}, and nothing arrives"
    return HangDiagnosis(activity.rank, sentence, activity.frames)


def format_ranks(numbers: Iterable[int]) -> str:
    ranks = sorted(numbers)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:4]))}, ...)"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def format_stacks(
    samples: dict[int, StacksSampled | None],
    conditions: dict[int, ProcessStatus | None],
    data: Sequence[DataProcessSampled] = (),
) -> str:
    """All threads of all ranks and data processes, innermost frame last, with the user's frames marked."""
    processes = [(f"rank {rank}", sample, conditions.get(rank)) for rank, sample in sorted(samples.items())]
    processes += [(describe_data_process(each), each.sample, each.process_status) for each in data]
    lines = []
    for title, sample, status in processes:
        state = f"state {status.state or '?'}, {status.cpu_s:.2f} s of CPU" if status is not None else "state unknown"
        lines.append(f"{title}: {state}")
        if sample is None:
            kernel_function = status.kernel_function if status is not None else ""
            lines.append(
                "  does not answer" + (f", waiting in the kernel: {kernel_function}" if kernel_function else "")
            )
            continue
        for name, frames in (("main thread", sample.main), *sample.others):
            lines.append(f"  {name}")
            lines += [f"    {'>' if frame.is_user_code else ' '} {frame.where} in {frame.function}" for frame in frames]
            if name == "main thread" and sample.called:
                lines.append(f"        calling {sample.called}")
    return "\n".join(lines) + "\n"


def describe_data_process(sample: DataProcessSampled) -> str:
    return f"data process {sample.pid}, {sample.stage} of {sample.unit}"
