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
    "t": "is paused by a debugger",
    "Z": "has ended",
    "X": "has ended",
    "R": "computes without answering: code outside Python holds the GIL",
    "D": "waits in the kernel for a disk or another device",
    "S": "waits in the kernel without answering: code outside Python holds the GIL",
}


def explain_no_workers(run: Run) -> str:
    match run.phase:
        case Restoring():
            reason = "they start once its checkpoint is verified"
        case Waiting():
            reason = "it waits for capacity"
        case Validating():
            reason = "training is complete, and validations run"
        case _:
            reason = "it is starting or ending"
    return f"the run has no workers: {reason}"


def make_final_answer(run: Run, name: str, error: BaseException | None) -> Callable[[bool], Answer]:
    """Return a function that builds the answer after the end of the run, for a stop (True) or any other request."""

    def answer(to_stop: bool) -> Answer:
        if error is not None:
            text = f"the driver of run {name} ended with {type(error).__name__}: {to_printable(str(error))}"
            return Answer(state="refused", text=text)
        if not to_stop:
            return Answer(state="refused", text=f"{format_run_end(run, name)}, before the request was done")
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
        reason = first_failure(phase.failures).message if phase.failures else phase.reason
        return f"run {name} failed after {reports}: {reason}"
    since = f"from {run.latest.name} (report {run.latest.seq})" if run.latest is not None else "from the beginning"
    word = "was preempted" if ending == "preempted" else "has stopped"
    return f"run {name} {word} after {reports}; run its script again to resume {since}"


def build_stacks_answer(
    ranks: Iterable[int], samples: Mapping[int, StacksSampled], process_statuses: Mapping[int, ProcessStatus | None]
) -> Answer:
    stacks = []
    for rank in ranks:
        sample = samples.get(rank)
        status = sample.process_status if sample is not None else process_statuses.get(rank)
        if sample is None:
            stacks.append(RankStacks(rank=rank, answers=False, condition=_describe_process(status)))
            continue
        others = (Thread(display_name(name), _to_stack_lines(frames)) for name, frames in sample.others)
        threads = (Thread("main thread", _to_stack_lines(sample.main), display_name(sample.called)), *others)
        stacks.append(RankStacks(rank=rank, answers=True, condition=_format_cpu_use(status), threads=threads))
    statuses = {each.rank: process_statuses.get(each.rank) for each in stacks}
    for rank, sample in samples.items():
        statuses[rank] = sample.process_status
    text = format_stacks({each.rank: samples.get(each.rank) for each in stacks}, statuses)
    return Answer(state="done", text=text, stacks=tuple(stacks))


def _to_stack_lines(frames: Sequence[StackFrame]) -> tuple[StackLine, ...]:
    return tuple(
        StackLine(display_name(frame.function), display_name(frame.where), frame.is_user_code) for frame in frames
    )


def _format_cpu_use(status: ProcessStatus | None) -> str:
    return f"state {status.state or '?'}, {status.cpu_s:.2f} s of CPU" if status is not None else ""


def _describe_process(status: ProcessStatus | None) -> str:
    if status is None:
        return "its process has ended or is not visible from here"
    location = f" ({status.kernel_function})" if status.kernel_function else ""
    return f"its process {_STATE_TEXTS.get(status.state, 'does not answer')}{location}; {_format_cpu_use(status)}"


def build_profiles_answer(
    ranks: Sequence[int],
    profiles: Mapping[int, ProfileRecorded],
    process_statuses: Mapping[int, ProcessStatus | None],
    files: Sequence[DiagnosticFile],
    note: str,
    uri: str,
) -> Answer:
    problems = [note] if note else []
    for rank in ranks:
        profile = profiles.get(rank)
        if profile is None:
            problems.append(f"rank {rank} sent no profile: {_describe_process(process_statuses.get(rank))}")
        elif profile.problem:
            problems.append(f"rank {rank}: {to_printable(profile.problem)}")
    plural = "s" if len(files) != 1 else ""
    text = f"{len(files)} file{plural} in {uri}/profiles" if files else "no profile was recorded"
    state = "done" if files else "refused"
    if not files and problems:
        text += ": " + "; ".join(problems)
    return Answer(state=state, text=text, files=tuple(files), problems=tuple(problems))  # type: ignore[arg-type]
