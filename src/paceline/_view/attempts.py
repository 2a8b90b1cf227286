"""The attempts of a run as they are shown: their workers, failures and hangs."""

from __future__ import annotations

from collections.abc import Callable

from paceline._control.policy import first_failure
from paceline._engine.messages import Failure, RankUse
from paceline._view.model import Attempt, GpuNow, Hang, ShownFailure, Worker
from paceline._view.story import Chapter, Story, TrackedWorker
from paceline._view.usage import Usage


def attempts_of(
    story: Story, usage: Usage, *, is_lost: bool, has: Callable[[str], bool] = lambda path: False
) -> tuple[Attempt, ...]:
    """`has`: whether there is a file below the run's directory."""
    chapters = story.chapters
    return tuple(
        _attempt(chapter, usage, is_lost and chapter is chapters[-1], story.last_at, has) for chapter in chapters
    )


def _attempt(chapter: Chapter, usage: Usage, is_lost: bool, last_at: float, has: Callable[[str], bool]) -> Attempt:
    stacks = f"logs/attempt_{chapter.number}/stacks.txt"
    cause = first_failure(chapter.failures) if chapter.failures else None
    is_over = is_lost or chapter.ended_at is not None
    return Attempt(
        number=chapter.number,
        began_at=chapter.began_at,
        ended_at=chapter.ended_at if chapter.ended_at is not None or not is_lost else last_at,
        size=chapter.size,
        resumed_from=chapter.resumed_from,
        ending=chapter.ending or ("lost" if is_lost else ""),
        first_report=chapter.first_report,
        last_report=chapter.last_report,
        failures=tuple(_failure(chapter, failure, failure is cause) for failure in chapter.failures),
        hangs=tuple(
            Hang(
                rank=told.rank,
                verdict=told.verdict,
                action=told.action,
                at=told.at,
                passed_after_s=told.passed_after_s,
                stacks=stacks if has(stacks) else None,
            )
            for told in chapter.hangs
        ),
        workers=tuple(
            _worker(worker, usage.last.get((chapter.number, rank)), usage.cpu(chapter.number, rank), is_over)
            for rank, worker in sorted(chapter.workers.items())
        ),
    )


def _failure(chapter: Chapter, failure: Failure, is_cause: bool) -> ShownFailure:
    return ShownFailure(
        rank=failure.rank,
        kind=failure.kind,
        message=failure.message,
        at=failure.at or chapter.heard_at.get((failure.rank, failure.message), 0.0),
        host=failure.host,
        pid=failure.pid,
        frames=failure.frames,
        traceback=failure.traceback,
        is_cause=is_cause,
    )


def _worker(worker: TrackedWorker, use: RankUse | None, cpu: float | None, is_over: bool) -> Worker:
    state = worker.state
    if is_over and state in ("starting", "running", "hangs"):
        state = "gone"
    return Worker(
        rank=worker.rank,
        state=state,
        pid=worker.pid or (use.pid if use is not None else 0),
        host=(use.host if use is not None else "") or worker.host,
        device=use.device if use is not None else "",
        num_reports=max(worker.num_reports, use.num_reports if use is not None else 0),
        cpu=cpu,
        rss_bytes=use.rss_bytes if use is not None else None,
        gpus=tuple(
            GpuNow(gpu.index, gpu.used_bytes, gpu.total_bytes, gpu.busy if gpu.busy >= 0 else None) for gpu in use.gpus
        )
        if use is not None
        else (),
        failure=worker.failure,
    )
