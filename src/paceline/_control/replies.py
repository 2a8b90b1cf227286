"""What people are told about what they asked of a run: texts and values, no effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from paceline._control.policy import first_failure
from paceline._control.requests import Answer, Line, MadeFile, RankStacks, Thread
from paceline._control.run import Finished, Restoring, Run, Validating, Waiting
from paceline._control.verdict import stacks_text
from paceline._core.frames import shown_name
from paceline._core.plain import printable
from paceline._core.system import Condition
from paceline._engine.messages import Frame, Profiled, Sampled

_STATES = {
    "T": "is stopped, by a signal such as SIGSTOP",
    "t": "is held by a debugger",
    "Z": "has ended",
    "X": "has ended",
    "R": "computes and answers nobody: it is in code that keeps the interpreter to itself",
    "D": "waits in the system, for a disk or another device",
    "S": "waits in the system and answers nobody: it is in code that keeps the interpreter to itself",
}


def without_workers(run: Run) -> str:
    match run.phase:
        case Restoring():
            why = "its checkpoint is being checked, and they start then"
        case Waiting():
            why = "it waits for room for them"
        case Validating():
            why = "it is trained, and validations are made"
        case _:
            why = "it is about to begin or to end"
    return f"the run has no workers now: {why}"


def after_end(run: Run, name: str, error: BaseException | None) -> Callable[[bool], Answer]:
    """What to answer once the run has ended, to somebody who asked for that (True) or for something else."""

    def answer(to_stop: bool) -> Answer:
        if error is not None:
            told = f"the driver of run {name} ended with {type(error).__name__}: {printable(str(error))}"
            return Answer(state="refused", text=told)
        if not to_stop:
            return Answer(state="refused", text=f"{ended_text(run, name)}, before that was done")
        ending = run.phase.ending if isinstance(run.phase, Finished) else None
        return Answer(
            state="done",
            text=ended_text(run, name),
            ending=ending,
            num_reports=run.num_reports,
            checkpoint=run.latest.name if run.latest is not None else None,
        )

    return answer


def ended_text(run: Run, name: str) -> str:
    reports = f"{run.num_reports} report{'s' if run.num_reports != 1 else ''}"
    phase = run.phase
    ending = phase.ending if isinstance(phase, Finished) else "interrupted"
    if ending == "complete":
        return f"run {name} is complete after {reports}"
    if ending == "failed":
        assert isinstance(phase, Finished)
        why = first_failure(phase.failures).message if phase.failures else phase.reason
        return f"run {name} failed after {reports}: {why}"
    since = f"from {run.latest.name} (report {run.latest.seq})" if run.latest is not None else "from the beginning"
    word = "was preempted" if ending == "preempted" else "has stopped"
    return f"run {name} {word} after {reports}; its script continues it {since}"


def stacks_answer(
    ranks: Iterable[int], samples: Mapping[int, Sampled], conditions: Mapping[int, Condition | None]
) -> Answer:
    told = []
    for rank in ranks:
        sample = samples.get(rank)
        known = sample.condition if sample is not None else conditions.get(rank)
        if sample is None:
            told.append(RankStacks(rank=rank, answers=False, condition=_condition(known)))
            continue
        others = (Thread(shown_name(name), _lines(frames)) for name, frames in sample.others)
        threads = (Thread("main thread", _lines(sample.main), shown_name(sample.called)), *others)
        told.append(RankStacks(rank=rank, answers=True, condition=_used(known), threads=threads))
    known_of_all = {stacks.rank: conditions.get(stacks.rank) for stacks in told}
    for rank, sample in samples.items():
        known_of_all[rank] = sample.condition
    text = stacks_text({stacks.rank: samples.get(stacks.rank) for stacks in told}, known_of_all)
    return Answer(state="done", text=text, stacks=tuple(told))


def _lines(frames: Sequence[Frame]) -> tuple[Line, ...]:
    return tuple(Line(shown_name(frame.function), shown_name(frame.where), frame.own) for frame in frames)


def _used(known: Condition | None) -> str:
    return f"state {known.state or '?'}, {known.cpu_s:.2f} s of CPU" if known is not None else ""


def _condition(known: Condition | None) -> str:
    if known is None:
        return "its process has ended, or cannot be seen from here"
    where = f" ({known.waits_in})" if known.waits_in else ""
    return f"its process {_STATES.get(known.state, 'does not answer')}{where}; {_used(known)}"


def profiles_answer(
    ranks: Sequence[int],
    profiles: Mapping[int, Profiled],
    conditions: Mapping[int, Condition | None],
    files: Sequence[MadeFile],
    note: str,
    uri: str,
) -> Answer:
    problems = [note] if note else []
    for rank in ranks:
        said = profiles.get(rank)
        if said is None:
            problems.append(f"rank {rank} has brought no profile: {_condition(conditions.get(rank))}")
        elif said.problem:
            problems.append(f"rank {rank}: {printable(said.problem)}")
    text = f"{len(files)} file{'s' if len(files) != 1 else ''} in {uri}/profiles" if files else "no profile was made"
    state = "done" if files else "refused"
    if not files and problems:
        text += ": " + "; ".join(problems)
    return Answer(state=state, text=text, files=tuple(files), problems=tuple(problems))  # type: ignore[arg-type]
