"""A run in plain text, section by section, each pure: values of the view in, lines of at most 80 columns out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline._commands import telling
from paceline._commands.checkpoints import listed
from paceline._commands.ls import progress
from paceline._view import words

if TYPE_CHECKING:
    from paceline._view.model import Attempt, Detail, ShownFailure, Spent, Stage, Summary, Worker

WIDTH = 80
MANY_WORKERS, MANY_CHECKPOINTS, MANY_ATTEMPTS = 16, 8, 8
_FRAMES = 3
_ACTS = {"warn": "told", "restart": "restarted", "fail": "failed"}


def told(detail: Detail, now: float) -> str:
    lines = [
        *head(detail.summary, now),
        *_section("workers", workers(detail.attempts)),
        *_section("attempts", attempts(detail.attempts, now)),
        *_section("checkpoints", checkpoints(detail)),
        *_section("time", spent(detail.spent)),
        *_section("data", stages(detail.stages, detail.limited_by)),
        *_section("configuration", config(detail.config)),
        *_section("code", code(detail)),
    ]
    return "\n".join(lines)


def head(run: Summary, now: float) -> Iterator[str]:
    yield f"{telling.cut(telling.line(run.name), WIDTH - 20)}  {telling.state(run.state)}"
    yield from field("path", run.path)
    yield from field("began", _began(run, now))
    yield from field("progress", ", ".join(_progress(run)))
    if run.steps_per_s and run.ended_at is None:
        speed = words.rate(run.steps_per_s, "report")
        speed += f", {words.rate(run.epochs_per_s, 'epoch')}" if run.epochs_per_s else ""
        yield from field("speed", speed)
    if run.metrics:
        yield from field("last", words.values(run.metrics))
    if run.best is not None:
        best = run.best
        at = f" at report {best.step}" if best.step else ""
        yield from field("best", f"{best.metric}={words.number(best.value)}{at} ({best.mode})")
    if run.failure:
        yield from field("failure", run.failure)
    if run.hang:
        yield from field("hang", run.hang)


def field(name: str, text: str) -> list[str]:
    """A name and what is said of it, the lines after the first under one another."""
    indent = " " * 12
    folded = telling.folded(text, WIDTH, indent).lstrip()
    return [f"{name:<12}{folded}" if len(name) < 12 else f"{name}\n{indent}{folded}"]


def _began(run: Summary, now: float) -> str:
    began = words.when(run.began_at, now)
    if run.ended_at is not None:
        return f"{began}, and took {words.duration(run.ended_at - run.began_at)}"
    return (
        f"{began}, {words.age(max(0.0, now - run.began_at))}; last heard of {words.age(max(0.0, now - run.updated_at))}"
    )


def _progress(run: Summary) -> Iterator[str]:
    made = progress(run)
    yield made
    if run.kind != "search" and not made.endswith(("report", "reports")):
        yield words.counted(run.num_reports, "report")
    if run.attempt > 1:
        yield words.counted(run.attempt, "attempt")
    if run.num_failures:
        yield words.counted(run.num_failures, "failure")
    if run.num_workers:
        yield words.counted(run.num_workers, "worker")


def _section(title: str, lines: Iterator[str]) -> list[str]:
    found = list(lines)
    return ["", title, *found] if found else []


def workers(made: Sequence[Attempt]) -> Iterator[str]:
    """Those of the last attempt; of many, those that something is the matter with come first."""
    there = made[-1].workers if made else ()
    if not there:
        return
    shown = sorted(there, key=lambda worker: (worker.state not in ("hangs", "failed", "gone"), worker.rank))
    shown = sorted(shown[:MANY_WORKERS], key=lambda worker: worker.rank)
    rows: list[tuple[str, ...]] = [("RANK", "STATE", "REPORTS", "CPU", "MEMORY", "GPU", "DEVICE", "WHERE")]
    rows += [_worker(worker) for worker in shown]
    empty = [at for at in range(len(rows[0])) if not any(row[at] for row in rows[1:])]
    kept = [[cell for at, cell in enumerate(row) if at not in empty] for row in rows]
    right = [kept[0].index(name) for name in ("RANK", "REPORTS", "CPU", "MEMORY") if name in kept[0]]
    yield telling.table(kept, right=right, states=(1,), indent="  ", within=WIDTH)
    if len(there) > len(shown):
        yield f"  and {len(there) - len(shown)} more"


def _worker(worker: Worker) -> tuple[str, ...]:
    gpus = " ".join(
        f"{words.size(gpu.used_bytes)}" + (f" {gpu.busy:.0%}" if gpu.busy is not None else "") for gpu in worker.gpus
    )
    return (
        str(worker.rank),
        worker.state,
        str(worker.num_reports),
        f"{worker.cpu:.1f}" if worker.cpu is not None else "",
        words.size(worker.rss_bytes) if worker.rss_bytes is not None else "",
        gpus,
        worker.device,
        " ".join((worker.host, f"pid {worker.pid}" if worker.pid else "")).strip(),
    )


def attempts(made: Sequence[Attempt], now: float) -> Iterator[str]:
    if len(made) > MANY_ATTEMPTS:
        yield f"  {len(made) - MANY_ATTEMPTS} earlier ones"
    for attempt in made[-MANY_ATTEMPTS:]:
        yield from _attempt(attempt, now)


def _attempt(attempt: Attempt, now: float) -> Iterator[str]:
    ending = attempt.ending or "goes on"
    ended = attempt.ended_at if attempt.ended_at is not None else now
    since = attempt.resumed_from or "the beginning"
    reports = ""
    if attempt.last_report >= attempt.first_report > 0:
        reports = f", reports {attempt.first_report} to {attempt.last_report}"
    size = words.counted(attempt.size, "worker")
    took = words.duration(max(0.0, ended - attempt.began_at))
    yield telling.cut(
        f"  {attempt.number}  {telling.line(f'{ending} after {took}: {size} from {since}{reports}')}", WIDTH
    )
    for failure in sorted(attempt.failures, key=lambda each: not each.is_cause)[:_FRAMES]:
        yield from _failure(failure)
    if len(attempt.failures) > _FRAMES:
        yield f"       and {len(attempt.failures) - _FRAMES} more failures after it"
    for hang in attempt.hangs:
        passed = f" (passed after {words.duration(hang.passed_after_s)})" if hang.passed_after_s is not None else ""
        yield telling.folded(
            f"hang of rank {hang.rank}, {_ACTS.get(hang.action, hang.action)}: {hang.verdict}{passed}", WIDTH, " " * 5
        )
        if hang.stacks:
            yield telling.folded(f"stacks in {hang.stacks}", WIDTH, " " * 7)


def _failure(failure: ShownFailure) -> Iterator[str]:
    which = "cause" if failure.is_cause else "after it"
    where = f" on {failure.host}" if failure.host else ""
    message = words.first_line(failure.message)
    yield telling.folded(f"{which}: rank {failure.rank}{where}, {failure.kind}: {message}", WIDTH, " " * 5)
    if failure.is_cause:
        for frame in failure.frames[-_FRAMES:]:
            yield telling.folded(telling.line(frame), WIDTH, " " * 7)


def checkpoints(detail: Detail) -> Iterator[str]:
    found = [shown for shown in detail.checkpoints if shown.kept]
    if not found:
        return
    if len(found) > MANY_CHECKPOINTS:
        yield f"  {len(found) - MANY_CHECKPOINTS} older ones"
    best = [shown for shown in found[:-MANY_CHECKPOINTS] if shown.is_best]
    yield listed([*best, *found[-MANY_CHECKPOINTS:]], indent="  ", within=WIDTH)


def spent(time: Spent) -> Iterator[str]:
    if time.wall_s <= 0:
        return
    parts = (
        ("starting", time.starting_s),
        ("data", time.data_s),
        ("compute", time.compute_s),
        ("report", time.report_s),
        ("checkpoint", time.checkpoint_s),
        ("between", time.between_s),
    )
    rows = []
    for name, seconds in parts:
        share = seconds / time.wall_s
        rows.append((name, words.duration(seconds), f"{share:.0%}", "#" * min(40, round(share * 40))))
    rows.append(("all", words.duration(time.wall_s), "", ""))
    yield telling.table(rows, right=(1, 2), indent="  ")


def stages(found: Sequence[Stage], limited_by: str | None) -> Iterator[str]:
    if limited_by:
        yield from (f"  {line}" for line in telling.folded(f"limited by {limited_by}", WIDTH - 2).split("\n"))
    if not found:
        return
    rows = [("", "STAGE", "ROWS", "SIZE", "BUSY", "FOR INPUT", "FOR ROOM")]
    for stage in found:
        rows.append(
            (
                "*" if stage.limits else "",
                f"{stage.dataset} {stage.name}",
                words.number(stage.num_rows),
                words.size(stage.num_bytes),
                words.duration(stage.busy_s),
                words.duration(stage.waited_for_input_s),
                words.duration(stage.waited_for_room_s),
            )
        )
    yield telling.table(rows, right=(2, 3, 4, 5, 6), indent="  ", within=WIDTH)


def config(values: Mapping[str, Any]) -> Iterator[str]:
    rows = [(name, words.value(value, WIDTH)) for name, value in _flat(values)]
    if rows:
        yield telling.table(rows, indent="  ", within=WIDTH)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def code(detail: Detail) -> Iterator[str]:
    about = detail.code
    rows = [(name, str(about[name])) for name in ("script", "function") if about.get(name)]
    git = about.get("git")
    if isinstance(git, Mapping) and git.get("commit"):
        changed = ", with changes that are not committed" if git.get("dirty") else ""
        branch = f" on {git['branch']}" if git.get("branch") else ""
        rows.append(("git", f"{str(git['commit'])[:12]}{branch}{changed}"))
    if rows:
        yield telling.table(rows, indent="  ", within=WIDTH)
