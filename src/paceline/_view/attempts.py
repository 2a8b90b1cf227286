"""The attempts of a run as shown: their workers, failures and hangs."""

from __future__ import annotations

from collections.abc import Callable

from paceline._control.retry_policy import first_failure
from paceline._engine.messages import RankUsage, WorkerFailure
from paceline._view.model import Attempt, ShownFailure, ShownGpu, ShownHang, Worker
from paceline._view.run_history import AttemptHistory, RunHistory, TrackedWorker
from paceline._view.usage import UsageHistory


def build_attempts(
    story: RunHistory, usage: UsageHistory, *, is_lost: bool, has: Callable[[str], bool] = lambda path: False
) -> tuple[Attempt, ...]:
    """Build the attempts. `has`: whether a file exists below the run's directory."""
    chapters = story.attempts
    return tuple(
        _build_attempt(chapter, usage, is_lost and chapter is chapters[-1], story.last_at, has) for chapter in chapters
    )


def _build_attempt(
    chapter: AttemptHistory, usage: UsageHistory, is_lost: bool, last_at: float, has: Callable[[str], bool]
) -> Attempt:
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
        failures=tuple(_build_failure(chapter, failure, failure is cause) for failure in chapter.failures),
        hangs=tuple(
            ShownHang(
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
            _build_worker(
                worker, usage.last.get((chapter.number, rank)), usage.cpu_cores(chapter.number, rank), is_over
            )
            for rank, worker in sorted(chapter.workers.items())
        ),
    )


def _build_failure(chapter: AttemptHistory, failure: WorkerFailure, is_cause: bool) -> ShownFailure:
    return ShownFailure(
        rank=failure.rank,
        kind=failure.kind,
        message=failure.message,
        at=failure.at or chapter.failure_heard_at.get((failure.rank, failure.message), 0.0),
        host=failure.host,
        pid=failure.pid,
        frames=failure.frames,
        traceback=failure.traceback,
        is_cause=is_cause,
    )


def _build_worker(worker: TrackedWorker, use: RankUsage | None, cpu: float | None, is_over: bool) -> Worker:
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
            ShownGpu(gpu.index, gpu.used_bytes, gpu.total_bytes, gpu.busy if gpu.busy >= 0 else None)
            for gpu in use.gpus
        )
        if use is not None
        else (),
        failure=worker.failure,
    )
