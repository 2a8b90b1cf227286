"""Builds the answers to requests: texts and values, no effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from paceline._control.hang_diagnosis import format_stacks
from paceline._control.requests import Answer, DiagnosticFile, RankStacks, StackLine, Thread
from paceline._control.retry_policy import first_failure
from paceline._control.run import Finished, Restoring, Run, Validating, Waiting
from paceline._core.frames import display_name
from paceline._core.plain_values import to_printable
from paceline._core.system import ProcessStatus
from paceline._engine.messages import ProfileRecorded, StackFrame, StacksSampled

_STATE_TEXTS = {
    "T": "is stopped, by a signal such as SIGSTOP",
    "t": "is held by a debugger",
    "Z": "has ended",
    "X": "has ended",
    "R": "computes and answers nobody: it is in code that keeps the interpreter to itself",
    "D": "waits in the system, for a disk or another device",
    "S": "waits in the system and answers nobody: it is in code that keeps the interpreter to itself",
}


def explain_no_workers(run: Run) -> str:
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


def make_final_answer(run: Run, name: str, error: BaseException | None) -> Callable[[bool], Answer]:
    """Return a function that builds the answer after the end of the run, for a stop (True) or any other request."""

    def answer(to_stop: bool) -> Answer:
        if error is not None:
            told = f"the driver of run {name} ended with {type(error).__name__}: {to_printable(str(error))}"
            return Answer(state="refused", text=told)
        if not to_stop:
            return Answer(state="refused", text=f"{format_run_end(run, name)}, before that was done")
        ending = run.phase.ending if isinstance(run.phase, Finished) else None
        return Answer(
            state="done",
            text=format_run_end(run, name),
            ending=ending,
            num_reports=run.num_reports,
            checkpoint=run.latest.name if run.latest is not None else None,
        )

    return answer


def format_run_end(run: Run, name: str) -> str:
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


def build_stacks_answer(
    ranks: Iterable[int], samples: Mapping[int, StacksSampled], conditions: Mapping[int, ProcessStatus | None]
) -> Answer:
    told = []
    for rank in ranks:
        sample = samples.get(rank)
        known = sample.process_status if sample is not None else conditions.get(rank)
        if sample is None:
            told.append(RankStacks(rank=rank, answers=False, condition=_describe_process(known)))
            continue
        others = (Thread(display_name(name), _to_stack_lines(frames)) for name, frames in sample.others)
        threads = (Thread("main thread", _to_stack_lines(sample.main), display_name(sample.called)), *others)
        told.append(RankStacks(rank=rank, answers=True, condition=_format_cpu_use(known), threads=threads))
    known_of_all = {stacks.rank: conditions.get(stacks.rank) for stacks in told}
    for rank, sample in samples.items():
        known_of_all[rank] = sample.process_status
    text = format_stacks({stacks.rank: samples.get(stacks.rank) for stacks in told}, known_of_all)
    return Answer(state="done", text=text, stacks=tuple(told))


def _to_stack_lines(frames: Sequence[StackFrame]) -> tuple[StackLine, ...]:
    return tuple(
        StackLine(display_name(frame.function), display_name(frame.where), frame.is_user_code) for frame in frames
    )


def _format_cpu_use(known: ProcessStatus | None) -> str:
    return f"state {known.state or '?'}, {known.cpu_s:.2f} s of CPU" if known is not None else ""


def _describe_process(known: ProcessStatus | None) -> str:
    if known is None:
        return "its process has ended, or cannot be seen from here"
    where = f" ({known.kernel_function})" if known.kernel_function else ""
    return f"its process {_STATE_TEXTS.get(known.state, 'does not answer')}{where}; {_format_cpu_use(known)}"


def build_profiles_answer(
    ranks: Sequence[int],
    profiles: Mapping[int, ProfileRecorded],
    conditions: Mapping[int, ProcessStatus | None],
    files: Sequence[DiagnosticFile],
    note: str,
    uri: str,
) -> Answer:
    problems = [note] if note else []
    for rank in ranks:
        said = profiles.get(rank)
        if said is None:
            problems.append(f"rank {rank} has brought no profile: {_describe_process(conditions.get(rank))}")
        elif said.problem:
            problems.append(f"rank {rank}: {to_printable(said.problem)}")
    text = f"{len(files)} file{'s' if len(files) != 1 else ''} in {uri}/profiles" if files else "no profile was made"
    state = "done" if files else "refused"
    if not files and problems:
        text += ": " + "; ".join(problems)
    return Answer(state=state, text=text, files=tuple(files), problems=tuple(problems))  # type: ignore[arg-type]
