"""Turns the activities of the ranks of a hung run into one sentence: which rank is where, and who waits for whom.

Pure. `hang_detector.py` decides when to sample, and whether the ranks stand still at all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline._control.run import PendingCheckpoint
from paceline._core.system import ProcessStatus
from paceline._engine.messages import StackFrame, StacksSampled

Activity = Literal["collective", "gpu", "barrier", "report", "storage", "loader", "rows", "stopped", "mute", "other"]

WAITS_FOR_OTHERS = ("collective", "gpu", "barrier", "report", "rows")
"""Activities in which a rank may be blocked by another: do not blame it while there is another candidate."""

_CONTEXT = "paceline._worker.context"
_OURS = ("paceline._worker.upload", "paceline._storage.")
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
    """What that line calls."""
    silent_s: float
    frames: tuple[str, ...] = ()
    """The user's own frames, innermost last."""
    is_standing: bool = True
    is_computing: bool = False


@dataclass(frozen=True)
class HangContext:
    """What the run knows besides the activities of its ranks."""

    storage: str
    pending: tuple[PendingCheckpoint, ...] = ()
    behind: dict[int, int] = field(default_factory=dict)
    """Ranks that have not made the report of the first pending checkpoint, and their report counts."""
    committing: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()


@dataclass(frozen=True)
class HangDiagnosis:
    rank: int
    sentence: str
    frames: tuple[str, ...]
    is_curable: bool = True
    """Whether restarting the workers can help."""


def infer_activity(
    rank: int, sample: StacksSampled | None, condition: ProcessStatus | None, last: str, silent_s: float
) -> RankActivity:
    """Infer what a rank is doing from its sample, or from the lack of one."""
    if sample is None:
        if condition is not None and condition.state in ("T", "t"):
            return RankActivity(rank, "stopped", last, "", silent_s)
        waits_in = condition.kernel_function if condition is not None and condition.state in ("S", "D") else ""
        return RankActivity(rank, "mute", last, waits_in, silent_s)
    frames = sample.main
    own = [at for at, frame in enumerate(frames) if frame.is_user_code]
    below = frames[own[-1] + 1 :] if own else frames
    shown = tuple(f"{frames[at].where} in {frames[at].function}" for at in own)
    doing, call = _classify_activity(frames, below, own, sample.called)
    return RankActivity(rank, doing, shown[-1] if shown else "", call, silent_s, shown)


def is_debugged(sample: StacksSampled | None, condition: ProcessStatus | None) -> bool:
    """Whether somebody debugs this process."""
    if condition is not None and condition.is_traced:
        return True
    return sample is not None and any(_is_within(frame.module, _DEBUGGERS) for frame in sample.main)


def is_waiting_for_validation(sample: StacksSampled | None) -> bool:
    """Whether a rank asks for all its checkpoints, which may include waiting for their validation."""
    return sample is not None and any((f.module, f.function) == (_CONTEXT, "checkpoints") for f in sample.main)


def diagnose_hang(stances: Sequence[RankActivity], about: HangContext) -> HangDiagnosis:
    """Find out who blocks the run. `stances` has every rank that has not returned."""
    standing = [stance for stance in stances if stance.is_standing]
    culprits = [stance for stance in standing if stance.doing not in WAITS_FOR_OTHERS]
    if culprits:
        waiting = [stance for stance in standing if stance not in culprits]
        sentence = "; ".join(
            [*_describe_culprits(culprits, about), *_describe_waiters(waiting, "it" if len(culprits) == 1 else "them")]
        )
        return HangDiagnosis(culprits[0].rank, sentence, culprits[0].frames)
    in_report = [stance for stance in standing if stance.doing == "report"]
    if in_report and about.committing:
        return _diagnose_slow_storage(in_report, about)
    if in_report and about.behind:
        return _diagnose_missing_reports(in_report, stances, about)
    return _diagnose_mismatch(standing, stances, about)


def _classify_activity(
    frames: Sequence[StackFrame], below: Sequence[StackFrame], own: Sequence[int], called: str
) -> tuple[Activity, str]:
    ours = {frame.function for frame in below if frame.module == _CONTEXT}
    if any(_is_within(frame.module, _OURS) for frame in below):
        return "storage", ""
    if ours & {"report", "finish", "checkpoints"}:
        return "report", ""
    if "join" in ours:
        return "barrier", ""
    call = _name_call(below, called)
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
    if own and any(_is_within(frame.module, (_LOADER,)) for frame in frames[own[0] :]):
        return "loader", call
    if any(_is_within(frame.module, (_DATASET,)) for frame in below):
        return "rows", ""
    if called.rpartition(".")[2] in _GPU or (below and _is_within(below[-1].module, ("torch.cuda",))):
        return "gpu", call
    return "other", call


def _name_call(below: Sequence[StackFrame], called: str) -> str:
    """What the user's line called, as far down as it has a name."""
    if not below:
        return called
    first = below[0]
    return f"{first.module}.{first.function}"


def _is_within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(package.rstrip(".") + ".") for package in packages)


def _describe_culprits(stances: Sequence[RankActivity], about: HangContext) -> list[str]:
    """One clause per activity, with all ranks that share it."""
    groups: dict[tuple[str, str, str], list[RankActivity]] = {}
    for one in stances:
        groups.setdefault((one.doing, one.where, one.call), []).append(one)
    clauses = [_describe_group(group, about) for group in list(groups.values())[:_MAX_CLAUSES]]
    return clauses + ([f"{len(groups) - _MAX_CLAUSES} more stand elsewhere"] if len(groups) > _MAX_CLAUSES else [])


def _describe_group(group: Sequence[RankActivity], about: HangContext) -> str:
    one = group[0]
    who, have = format_ranks(each.rank for each in group), _subject_with_have(group)
    span = f"for {min(each.silent_s for each in group):.0f} s"
    last = f"; its last report was made at {one.where}" if one.where else ""
    match one.doing:
        case "stopped":
            return f"{who} {'is' if len(group) == 1 else 'are'} stopped by a signal (SIGSTOP), silent {span}{last}"
        case "mute":
            kernel = f", waiting in the kernel ({one.call})" if one.call else ""
            return f"{have} been silent {span}: code outside Python holds the GIL{kernel}{last}"
        case "storage":
            seq = f" of report {about.pending[0].seq}" if about.pending else ""
            return f"{have} stood {span} storing the checkpoint{seq} at {about.storage}{_format_location(one)}"
        case "loader":
            return f"{have} stood in the data loader{_format_location(one)} {span}"
    call = f" ({one.call})" if one.call else ""
    return f"{have} {'computed' if one.is_computing else 'stood'}{_format_location(one)}{call} {span}"


def _describe_waiters(stances: Sequence[RankActivity], whom: str) -> list[str]:
    groups: dict[tuple[str, str], list[RankActivity]] = {}
    for one in stances:
        groups.setdefault((one.doing, one.where), []).append(one)
    return [
        f"{format_ranks(each.rank for each in group)} {'waits' if len(group) == 1 else 'wait'} for "
        f"{whom} {_describe_wait(group[0])}"
        for group in list(groups.values())[:_MAX_CLAUSES]
    ]


def _subject_with_have(group: Sequence[RankActivity]) -> str:
    return f"{format_ranks(each.rank for each in group)} {'has' if len(group) == 1 else 'have'}"


def _describe_wait(one: RankActivity) -> str:
    call = f" ({one.call})" if one.call else ""
    places = {
        "collective": f"in a collective{call}",
        "gpu": f"for a GPU{call}",
        "barrier": "in paceline's barrier or broadcast",
        "report": "in report()",
        "rows": "for rows of a dataset",
    }
    return f"{places[one.doing]}{_format_location(one)}"


def _format_location(one: RankActivity) -> str:
    return f" at {one.where}" if one.where else " outside the train function"


def _diagnose_slow_storage(in_report: Sequence[RankActivity], about: HangContext) -> HangDiagnosis:
    one = in_report[0]
    sentence = (
        f"the checkpoint of report {about.committing[0]} has waited {one.silent_s:.0f} s for storage at "
        f"{about.storage}; {'; '.join(_describe_waiters(in_report, 'it'))}"
    )
    # The driver's own call to storage does not return: new workers would wait for it just as the old ones do.
    return HangDiagnosis(one.rank, sentence, one.frames, is_curable=False)


def _diagnose_missing_reports(
    in_report: Sequence[RankActivity], stances: Sequence[RankActivity], about: HangContext
) -> HangDiagnosis:
    one, pending = in_report[0], about.pending[0]
    by_rank = {stance.rank: stance for stance in stances}
    clauses = []
    for rank, made in list(about.behind.items())[:_MAX_CLAUSES]:
        other = by_rank.get(rank)
        does = f" and stands {_describe_wait(other)}" if other is not None and other.doing in WAITS_FOR_OTHERS else ""
        clauses.append(f"rank {rank} has made {made}{does}")
    sentence = (
        f"{_subject_with_have(in_report)} waited {one.silent_s:.0f} s in report {pending.seq} with a checkpoint at "
        f"{one.where or pending.where}: {', '.join(clauses)}. Every rank has to call report() equally often"
    )
    return HangDiagnosis(one.rank, sentence, one.frames)


def _diagnose_mismatch(
    standing: Sequence[RankActivity], stances: Sequence[RankActivity], about: HangContext
) -> HangDiagnosis:
    """All ranks wait: either one has left, or they wait for different things."""
    one = min(standing, key=lambda each: (sum(other.where == each.where for other in standing), each.rank))
    groups = _describe_waiting_groups(standing)
    span = f"{min(each.silent_s for each in standing):.0f} s"
    if about.returned:
        left = format_ranks(about.returned)
        sentence = f"{' and '.join(groups)} for {span}, but {left} returned without it"
    elif len(stances) > len(standing):
        moving = format_ranks(each.rank for each in stances if not each.is_standing)
        sentence = f"{' and '.join(groups)} for {span}, while {moving} went on without it"
    elif len(groups) > 1:
        sentence = f"ranks wait for each other at places that do not match: {', '.join(groups)}, for {span}"
    else:
        sentence = f"{groups[0]} for {span}, and nothing arrives"
    return HangDiagnosis(one.rank, sentence, one.frames)


def _describe_waiting_groups(standing: Sequence[RankActivity]) -> list[str]:
    groups: dict[str, list[RankActivity]] = {}
    for each in standing:
        groups.setdefault(_describe_wait(each), []).append(each)
    shown = [f"{_subject_with_have(group)} stood {place}" for place, group in groups.items()]
    return shown[:_MAX_CLAUSES] + ([f"{len(shown) - _MAX_CLAUSES} more places"] if len(shown) > _MAX_CLAUSES else [])


def format_ranks(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) > 8:
        return f"{len(found)} ranks ({', '.join(map(str, found[:4]))}, ...)"
    return f"ranks {', '.join(map(str, found[:-1]))} and {found[-1]}"


def format_stacks(samples: dict[int, StacksSampled | None], conditions: dict[int, ProcessStatus | None]) -> str:
    """All threads of all ranks, innermost frame last, with the user's frames marked."""
    lines = []
    for rank, sample in sorted(samples.items()):
        known = conditions.get(rank)
        state = f"state {known.state or '?'}, {known.cpu_s:.2f} s of CPU" if known is not None else "state unknown"
        lines.append(f"rank {rank}: {state}")
        if sample is None:
            waits_in = (
                f", waiting in the kernel: {known.kernel_function}"
                if known is not None and known.kernel_function
                else ""
            )
            lines.append(f"  does not answer{waits_in}")
            continue
        for name, frames in (("main thread", sample.main), *sample.others):
            lines.append(f"  {name}")
            lines += [f"    {'>' if frame.is_user_code else ' '} {frame.where} in {frame.function}" for frame in frames]
            if name == "main thread" and sample.called:
                lines.append(f"        calling {sample.called}")
    return "\n".join(lines) + "\n"
