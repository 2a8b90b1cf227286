"""Format a run as plain text, section by section. Pure functions: view values in, lines of at most 80 columns out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline._commands import cli_output
from paceline._commands.checkpoints import format_checkpoints
from paceline._commands.ls import format_progress
from paceline._core.arguments import flatten_dict
from paceline._view import formatting

if TYPE_CHECKING:
    from paceline._view.model import (
        Attempt,
        RunSnapshot,
        SaveBreakdown,
        ShownFailure,
        ShownStage,
        Summary,
        TimeBreakdown,
        Worker,
    )

WIDTH = 80
MANY_WORKERS, MANY_CHECKPOINTS, MANY_ATTEMPTS = 16, 8, 8
_FRAMES = 3
_ACTS = {"warn": "told", "restart": "restarted", "fail": "failed"}


def format_run(detail: RunSnapshot, now: float) -> str:
    sections = {
        "workers": format_workers(detail.attempts),
        "attempts": format_attempts(detail.attempts, now),
        "checkpoints": format_checkpoint_section(detail),
        "time": format_time_spent(detail.spent),
        "saves": format_saves(detail.saves),
        "data": format_stages(detail.stages, detail.limited_by),
        "configuration": format_config(detail.config),
        "code": format_code(detail),
    }
    lines = [*format_head(detail.summary, now)]
    for title, section in sections.items():
        if shown := [*section]:
            lines += ["", title, *shown]
    return "\n".join(lines)


def format_head(run: Summary, now: float) -> Iterator[str]:
    name = cli_output.truncate_line(cli_output.escape_line(run.name), WIDTH - 20)
    yield f"{name}  {cli_output.colour_state(run.state)}"
    yield from field("path", run.path)
    yield from field("began", _format_began(run, now))
    yield from field("progress", ", ".join(_progress_parts(run)))
    if run.steps_per_s and run.ended_at is None:
        speed = formatting.rate(run.steps_per_s, "report")
        speed += f", {formatting.rate(run.epochs_per_s, 'epoch')}" if run.epochs_per_s else ""
        yield from field("speed", speed)
    if run.metrics:
        yield from field("last", formatting.values(run.metrics))
    if run.best is not None:
        best = run.best
        at = f" at report {best.step}" if best.step else ""
        yield from field("best", f"{best.metric}={formatting.number(best.value)}{at} ({best.mode})")
    for name, text in (("failure", run.failure), ("hang", run.hang)):
        if text:
            yield from field(name, text)


def field(name: str, text: str) -> list[str]:
    """Format a name and its text, with continuation lines indented."""
    indent = " " * 12
    folded = cli_output.wrap_text(text, WIDTH, indent).lstrip()
    return [f"{name:<12}{folded}" if len(name) < 12 else f"{name}\n{indent}{folded}"]


def _format_began(run: Summary, now: float) -> str:
    began = formatting.when(run.began_at, now)
    if run.ended_at is not None:
        return f"{began}, took {formatting.duration(run.ended_at - run.began_at)}"
    age, since_update = (formatting.age(max(0.0, now - at)) for at in (run.began_at, run.updated_at))
    return f"{began}, {age}; last update {since_update}"


def _progress_parts(run: Summary) -> Iterator[str]:
    progress = format_progress(run)
    yield progress
    if run.kind != "search" and not progress.endswith(("report", "reports")):
        yield formatting.format_count(run.num_reports, "report")
    num_attempts = run.attempt if run.attempt > 1 else 0
    for number, noun in ((num_attempts, "attempt"), (run.num_failures, "failure"), (run.num_workers, "worker")):
        if number:
            yield formatting.format_count(number, noun)


def format_workers(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Format the workers of the last attempt. If there are too many, those with problems are shown first."""
    workers = attempts[-1].workers if attempts else ()
    if not workers:
        return
    shown = sorted(workers, key=lambda worker: (worker.state not in ("hangs", "failed", "gone"), worker.rank))
    shown = sorted(shown[:MANY_WORKERS], key=lambda worker: worker.rank)
    rows: list[tuple[str, ...]] = [("RANK", "STATE", "REPORTS", "CPU", "MEMORY", "GPU", "DEVICE", "WHERE")]
    rows += [_worker_cells(worker) for worker in shown]
    empty = [at for at in range(len(rows[0])) if not any(row[at] for row in rows[1:])]
    table = [[cell for at, cell in enumerate(row) if at not in empty] for row in rows]
    right = [table[0].index(name) for name in ("RANK", "REPORTS", "CPU", "MEMORY") if name in table[0]]
    yield cli_output.format_table(table, right=right, states=(1,), indent="  ", within=WIDTH)
    if len(workers) > len(shown):
        yield f"  and {len(workers) - len(shown)} more"


def _worker_cells(worker: Worker) -> tuple[str, ...]:
    used = [(formatting.size(gpu.used_bytes), gpu.busy) for gpu in worker.gpus]
    gpus = " ".join(size + (f" {busy:.0%}" if busy is not None else "") for size, busy in used)
    return (
        str(worker.rank),
        worker.state,
        str(worker.num_reports),
        f"{worker.cpu:.1f}" if worker.cpu is not None else "",
        formatting.size(worker.rss_bytes) if worker.rss_bytes is not None else "",
        gpus,
        worker.device,
        " ".join((worker.host, f"pid {worker.pid}" if worker.pid else "")).strip(),
    )


def format_attempts(attempts: Sequence[Attempt], now: float) -> Iterator[str]:
    if len(attempts) > MANY_ATTEMPTS:
        yield f"  {len(attempts) - MANY_ATTEMPTS} earlier ones"
    for attempt in attempts[-MANY_ATTEMPTS:]:
        yield from _format_attempt(attempt, now)


def _format_attempt(attempt: Attempt, now: float) -> Iterator[str]:
    ended = attempt.ended_at if attempt.ended_at is not None else now
    took = formatting.duration(max(0.0, ended - attempt.began_at))
    size = formatting.format_count(attempt.size, "worker")
    text = f"{attempt.ending or 'running'} after {took}: {size} from {attempt.resumed_from or 'the beginning'}"
    if attempt.last_report >= attempt.first_report > 0:
        text += f", reports {attempt.first_report} to {attempt.last_report}"
    yield cli_output.truncate_line(f"  {attempt.number}  {cli_output.escape_line(text)}", WIDTH)
    for failure in sorted(attempt.failures, key=lambda each: not each.is_cause)[:_FRAMES]:
        yield from _format_failure(failure)
    if len(attempt.failures) > _FRAMES:
        yield f"       and {len(attempt.failures) - _FRAMES} more failures after it"
    for hang in attempt.hangs:
        text = f"hang of rank {hang.rank}, {_ACTS.get(hang.action, hang.action)}: {hang.verdict}"
        if hang.passed_after_s is not None:
            text += f" (passed after {formatting.duration(hang.passed_after_s)})"
        yield cli_output.wrap_text(text, WIDTH, " " * 5)
        if hang.stacks:
            yield cli_output.wrap_text(f"stacks in {hang.stacks}", WIDTH, " " * 7)


def _format_failure(failure: ShownFailure) -> Iterator[str]:
    label = "cause" if failure.is_cause else "after it"
    host = f" on {failure.host}" if failure.host else ""
    message = formatting.first_line(failure.message)
    yield cli_output.wrap_text(f"{label}: rank {failure.rank}{host}, {failure.kind}: {message}", WIDTH, " " * 5)
    if failure.is_cause:
        for frame in failure.frames[-_FRAMES:]:
            yield cli_output.wrap_text(cli_output.escape_line(frame), WIDTH, " " * 7)


def format_checkpoint_section(detail: RunSnapshot) -> Iterator[str]:
    checkpoints = [checkpoint for checkpoint in detail.checkpoints if checkpoint.kept]
    if not checkpoints:
        return
    if len(checkpoints) > MANY_CHECKPOINTS:
        yield f"  {len(checkpoints) - MANY_CHECKPOINTS} older ones"
    best = [checkpoint for checkpoint in checkpoints[:-MANY_CHECKPOINTS] if checkpoint.is_best]
    yield format_checkpoints([*best, *checkpoints[-MANY_CHECKPOINTS:]], indent="  ", within=WIDTH)


def format_time_spent(time: TimeBreakdown) -> Iterator[str]:
    if time.wall_s <= 0:
        return
    rows = []
    for name in ("starting", "data", "compute", "report", "checkpoint", "between"):
        seconds = getattr(time, f"{name}_s")
        share = seconds / time.wall_s
        rows.append((name, formatting.duration(seconds), f"{share:.0%}", "#" * min(40, round(share * 40))))
    rows.append(("all", formatting.duration(time.wall_s), "", ""))
    yield cli_output.format_table(rows, right=(1, 2), indent="  ")


def format_saves(saves: SaveBreakdown | None) -> Iterator[str]:
    """Format what a save takes, part by part, and how fast the disk is."""
    if saves is None:
        return
    row = {
        name.upper(): formatting.short_duration(getattr(saves, f"{name}_s"))
        for name in ("copy", "write", "hash", "sync", "upload", "commit")
        if name != "upload" or saves.upload_s > 0
    }
    if saves.num_bytes:
        row["WRITTEN"] = formatting.size(saves.num_bytes)
    yield cli_output.format_table([(*row,), (*row.values(),)], right=range(len(row)), indent="  ", within=WIDTH)
    yield f"  mean of {formatting.format_count(saves.num_saves, 'save')}"
    if saves.disk_bytes_per_s is not None:
        speed, best = formatting.size(saves.disk_bytes_per_s), formatting.size(saves.best_bytes_per_s)
        yield f"  disk {speed}/s, {best}/s in the fastest save; see also `paceline doctor PATH`"


def format_stages(stages: Sequence[ShownStage], limited_by: str | None) -> Iterator[str]:
    if limited_by:
        yield from (f"  {line}" for line in cli_output.wrap_text(f"limited by {limited_by}", WIDTH - 2).split("\n"))
    if not stages:
        return
    rows: list[tuple[str, ...]] = [("", "STAGE", "ROWS", "SIZE", "BUSY", "FOR INPUT", "FOR ROOM")]
    for stage in stages:
        times = map(formatting.duration, (stage.busy_s, stage.waited_for_input_s, stage.waited_for_room_s))
        name = f"{stage.dataset} {stage.name}"
        amounts = formatting.number(stage.num_rows), formatting.size(stage.num_bytes)
        rows.append(("*" if stage.limits else "", name, *amounts, *times))
    yield cli_output.format_table(rows, right=(2, 3, 4, 5, 6), indent="  ", within=WIDTH)


def format_config(values: Mapping[str, Any]) -> Iterator[str]:
    rows = [(name, formatting.value(value, WIDTH)) for name, value in flatten_dict(values, ".").items()]
    if rows:
        yield cli_output.format_table(rows, indent="  ", within=WIDTH)


def format_code(detail: RunSnapshot) -> Iterator[str]:
    code = detail.code
    rows = [(name, str(code[name])) for name in ("script", "function") if code.get(name)]
    git = code.get("git")
    if isinstance(git, Mapping) and git.get("commit"):
        changed = ", with uncommitted changes" if git.get("dirty") else ""
        branch = f" on {git['branch']}" if git.get("branch") else ""
        rows.append(("git", f"{str(git['commit'])[:12]}{branch}{changed}"))
    if rows:
        yield cli_output.format_table(rows, indent="  ", within=WIDTH)
