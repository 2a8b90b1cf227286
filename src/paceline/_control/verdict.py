"""From what the ranks of a run that stands still are doing to one sentence: who stands where, who waits for whom.

Pure. When to ask, and whether the ranks stand at all, is `hangs.py`'s part.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline._control.run import Pending
from paceline._core.system import Condition
from paceline._engine.messages import Frame, Sampled

Doing = Literal["collective", "gpu", "barrier", "report", "storage", "loader", "rows", "stopped", "mute", "other"]

WAITS_FOR_OTHERS = ("collective", "gpu", "barrier", "report", "rows")
"""A rank that does one of these may be kept by another: it is not the one to blame while there is somebody else."""

_CONTEXT = "paceline._worker.context"
_OURS = ("paceline._worker.upload", "paceline._storage.")
_COLLECTIVE = ("torch.distributed", "torch.nn.parallel.distributed")
_BACKWARD = "torch.autograd.graph"
_JAX = ("jax",)
_LOADER = "torch.utils.data"
_DATASET = "paceline.data"
_GPU = ("item", "cpu", "tolist", "synchronize", "nonzero", "numpy")
_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy", "IPython.core.debugger", "pudb")
_NAMED = 4


@dataclass(frozen=True)
class Stance:
    """What one rank is doing."""

    rank: int
    doing: Doing
    where: str
    """The user's line, as `train.py:41 in train_fn`; of a rank that does not answer, that of its last report."""
    call: str
    """What that line calls."""
    silent_s: float
    frames: tuple[str, ...] = ()
    """The user's own frames, innermost last."""
    stands: bool = True
    computes: bool = False


@dataclass(frozen=True)
class Surroundings:
    """What the run knows beside what its ranks are doing."""

    storage: str
    pending: tuple[Pending, ...] = ()
    behind: dict[int, int] = field(default_factory=dict)
    """Ranks that have not made the first pending checkpoint's report, and how many they have made."""
    committing: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()


@dataclass(frozen=True)
class Verdict:
    rank: int
    sentence: str
    frames: tuple[str, ...]
    curable: bool = True
    """Whether starting the workers again can help."""


def stance(rank: int, sample: Sampled | None, condition: Condition | None, last: str, silent_s: float) -> Stance:
    """What a rank is doing, from its answer, or from the want of one."""
    if sample is None:
        if condition is not None and condition.state in ("T", "t"):
            return Stance(rank, "stopped", last, "", silent_s)
        waits_in = condition.waits_in if condition is not None and condition.state in ("S", "D") else ""
        return Stance(rank, "mute", last, waits_in, silent_s)
    frames = sample.main
    own = [at for at, frame in enumerate(frames) if frame.own]
    below = frames[own[-1] + 1 :] if own else frames
    shown = tuple(f"{frames[at].where} in {frames[at].function}" for at in own)
    doing, call = _doing(frames, below, own, sample.called)
    return Stance(rank, doing, shown[-1] if shown else "", call, silent_s, shown)


def is_debugged(sample: Sampled | None, condition: Condition | None) -> bool:
    """Whether a person has stopped this process to look at it."""
    if condition is not None and condition.traced:
        return True
    return sample is not None and any(_within(frame.module, _DEBUGGERS) for frame in sample.main)


def waits_for_validation(sample: Sampled | None) -> bool:
    """Whether a rank asks for all its checkpoints, which may mean: once they are validated."""
    return sample is not None and any((f.module, f.function) == (_CONTEXT, "checkpoints") for f in sample.main)


def verdict(stances: Sequence[Stance], about: Surroundings) -> Verdict:
    """Who keeps the run from going on. `stances` has every rank that has not returned."""
    standing = [stance for stance in stances if stance.stands]
    culprits = [stance for stance in standing if stance.doing not in WAITS_FOR_OTHERS]
    if culprits:
        waiting = [stance for stance in standing if stance not in culprits]
        sentence = "; ".join([*_folded(culprits, about), *_waiters(waiting, "it" if len(culprits) == 1 else "them")])
        return Verdict(culprits[0].rank, sentence, culprits[0].frames)
    in_report = [stance for stance in standing if stance.doing == "report"]
    if in_report and about.committing:
        return _stored_slowly(in_report, about)
    if in_report and about.behind:
        return _report_of_some(in_report, stances, about)
    return _mismatch(standing, stances, about)


def _doing(frames: Sequence[Frame], below: Sequence[Frame], own: Sequence[int], called: str) -> tuple[Doing, str]:
    ours = {frame.function for frame in below if frame.module == _CONTEXT}
    if any(_within(frame.module, _OURS) for frame in below):
        return "storage", ""
    if ours & {"report", "finish", "checkpoints"}:
        return "report", ""
    if "join" in ours:
        return "barrier", ""
    call = _call(below, called)
    if below and _within(below[-1].module, _COLLECTIVE):
        names = (f.function for f in below if _within(f.module, _COLLECTIVE) and f.function != "wrapper")
        return "collective", next(names, call)
    if below and below[-1].module == _BACKWARD:
        return "collective", "backward"
    if not below and called.rpartition(".")[2] == "wait":  # of torch's Work, which has no Python frame
        return "collective", called
    # JAX communicates in what it computes: a rank that waits for its own values may wait for another rank.
    if called.rpartition(".")[2] == "block_until_ready" or (below and _within(below[-1].module, _JAX)):
        return "collective", call
    if own and any(_within(frame.module, (_LOADER,)) for frame in frames[own[0] :]):
        return "loader", call
    if any(_within(frame.module, (_DATASET,)) for frame in below):
        return "rows", ""
    if called.rpartition(".")[2] in _GPU or (below and _within(below[-1].module, ("torch.cuda",))):
        return "gpu", call
    return "other", call


def _call(below: Sequence[Frame], called: str) -> str:
    """What the user's line called, as far down as it can be named."""
    if not below:
        return called
    first = below[0]
    return f"{first.module}.{first.function}"


def _within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(package.rstrip(".") + ".") for package in packages)


def _folded(stances: Sequence[Stance], about: Surroundings) -> list[str]:
    """A clause for each thing that is done, with all ranks that do it."""
    groups: dict[tuple[str, str, str], list[Stance]] = {}
    for one in stances:
        groups.setdefault((one.doing, one.where, one.call), []).append(one)
    clauses = [_stands(group, about) for group in list(groups.values())[:_NAMED]]
    return clauses + ([f"{len(groups) - _NAMED} more stand elsewhere"] if len(groups) > _NAMED else [])


def _stands(group: Sequence[Stance], about: Surroundings) -> str:
    one = group[0]
    who, have = ranks(each.rank for each in group), _have(group)
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
            return f"{have} stood {span} storing the checkpoint{seq} at {about.storage}{_at(one)}"
        case "loader":
            return f"{have} stood in the data loader{_at(one)} {span}"
    call = f" ({one.call})" if one.call else ""
    return f"{have} {'computed' if one.computes else 'stood'}{_at(one)}{call} {span}"


def _waiters(stances: Sequence[Stance], whom: str) -> list[str]:
    groups: dict[tuple[str, str], list[Stance]] = {}
    for one in stances:
        groups.setdefault((one.doing, one.where), []).append(one)
    return [
        f"{ranks(each.rank for each in group)} {'waits' if len(group) == 1 else 'wait'} for {whom} {_in(group[0])}"
        for group in list(groups.values())[:_NAMED]
    ]


def _have(group: Sequence[Stance]) -> str:
    return f"{ranks(each.rank for each in group)} {'has' if len(group) == 1 else 'have'}"


def _in(one: Stance) -> str:
    call = f" ({one.call})" if one.call else ""
    places = {
        "collective": f"in a collective{call}",
        "gpu": f"for a GPU{call}",
        "barrier": "in paceline's barrier or broadcast",
        "report": "in report()",
        "rows": "for rows of a dataset",
    }
    return f"{places[one.doing]}{_at(one)}"


def _at(one: Stance) -> str:
    return f" at {one.where}" if one.where else " outside the train function"


def _stored_slowly(in_report: Sequence[Stance], about: Surroundings) -> Verdict:
    one = in_report[0]
    sentence = (
        f"the checkpoint of report {about.committing[0]} has waited {one.silent_s:.0f} s for storage at "
        f"{about.storage}; {'; '.join(_waiters(in_report, 'it'))}"
    )
    # The driver's own call to storage does not return: new workers would wait for it as the old ones do.
    return Verdict(one.rank, sentence, one.frames, curable=False)


def _report_of_some(in_report: Sequence[Stance], stances: Sequence[Stance], about: Surroundings) -> Verdict:
    one, pending = in_report[0], about.pending[0]
    by_rank = {stance.rank: stance for stance in stances}
    clauses = []
    for rank, made in list(about.behind.items())[:_NAMED]:
        other = by_rank.get(rank)
        does = f" and stands {_in(other)}" if other is not None and other.doing in WAITS_FOR_OTHERS else ""
        clauses.append(f"rank {rank} has made {made}{does}")
    sentence = (
        f"{_have(in_report)} waited {one.silent_s:.0f} s in report {pending.seq} with a checkpoint at "
        f"{one.where or pending.where}: {', '.join(clauses)}. Every rank has to call report() equally often"
    )
    return Verdict(one.rank, sentence, one.frames)


def _mismatch(standing: Sequence[Stance], stances: Sequence[Stance], about: Surroundings) -> Verdict:
    """Everybody waits for somebody: either one has left, or they do not wait for the same thing."""
    one = min(standing, key=lambda each: (sum(other.where == each.where for other in standing), each.rank))
    groups = _waiting_groups(standing)
    span = f"{min(each.silent_s for each in standing):.0f} s"
    if about.returned:
        left = ranks(about.returned)
        sentence = f"{' and '.join(groups)} for {span}, but {left} returned without it"
    elif len(stances) > len(standing):
        moving = ranks(each.rank for each in stances if not each.stands)
        sentence = f"{' and '.join(groups)} for {span}, while {moving} went on without it"
    elif len(groups) > 1:
        sentence = f"ranks wait for each other at places that do not match: {', '.join(groups)}, for {span}"
    else:
        sentence = f"{groups[0]} for {span}, and nothing arrives"
    return Verdict(one.rank, sentence, one.frames)


def _waiting_groups(standing: Sequence[Stance]) -> list[str]:
    groups: dict[str, list[Stance]] = {}
    for each in standing:
        groups.setdefault(_in(each), []).append(each)
    shown = [f"{_have(group)} stood {place}" for place, group in groups.items()]
    return shown[:_NAMED] + ([f"{len(shown) - _NAMED} more places"] if len(shown) > _NAMED else [])


def ranks(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) > 8:
        return f"{len(found)} ranks ({', '.join(map(str, found[:4]))}, ...)"
    return f"ranks {', '.join(map(str, found[:-1]))} and {found[-1]}"


def stacks_text(samples: dict[int, Sampled | None], conditions: dict[int, Condition | None]) -> str:
    """All threads of all ranks, the user's frames marked, innermost last."""
    lines = []
    for rank, sample in sorted(samples.items()):
        known = conditions.get(rank)
        state = f"state {known.state or '?'}, {known.cpu_s:.2f} s of CPU" if known is not None else "state unknown"
        lines.append(f"rank {rank}: {state}")
        if sample is None:
            waits_in = f", waiting in the kernel: {known.waits_in}" if known is not None and known.waits_in else ""
            lines.append(f"  does not answer{waits_in}")
            continue
        for name, frames in (("main thread", sample.main), *sample.others):
            lines.append(f"  {name}")
            lines += [f"    {'>' if frame.own else ' '} {frame.where} in {frame.function}" for frame in frames]
            if name == "main thread" and sample.called:
                lines.append(f"        calling {sample.called}")
    return "\n".join(lines) + "\n"
