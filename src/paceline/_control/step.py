"""The lifecycle of one training run, as a pure function.

    step(run, event, now) -> (run, commands)

Nothing here starts a process, reads a clock or touches a disk: the controller feeds events in and executes the
commands. Every transition of a run is in this file; an event that does not fit raises `InvalidTransition`.
`attempt_reports.py` combines the reports of the ranks. Recovery replays the journal of a lost driver through this same
function.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from paceline._control import attempt_reports, commands, events, retry_policy
from paceline._control import run as state
from paceline._control.commands import Command
from paceline._control.events import CheckpointRecord, Event, Reported, WorkerFailure
from paceline._control.run import Ending, Run, Running, Stopping
from paceline._core.cursor import Cursors, merge_rank_cursors
from paceline._core.trie import Trie
from paceline._engine import messages
from paceline._storage.commit import select_kept

STOP_GRACE_S = 10.0
"""Grace period for the remaining ranks to reach the report at which they were asked to stop."""
DRAIN_GRACE_S = 10.0
"""Grace period, after a failure, for the other ranks to make the last report of the failed one and to store its files.

That report may have returned, so the failure must not cost its checkpoint.
"""
EXIT_DELAY_NOTICE_S = 1.0
"""How long workers that cannot exit have to say why, after their grace period and before they are killed."""
SECONDARY_FAILURE_GRACE_S = 0.5
"""How much later than a broken connection the worker death that caused it may be reported."""
SAVE_TIME_FACTOR = 1.5
"""Safety factor: with a deadline, a checkpoint may take this many times as long as the last one."""

StepResult = tuple[Run, list[Command]]

_NO_POSITIONS: Trie[Cursors] = Trie()

_WITH_WORKERS = (Running, Stopping)


class InvalidTransition(Exception):
    """No phase of the run can handle the event: a bug in this library."""


def step(run: Run, event: Event, now: float = 0.0) -> StepResult:
    if type(event) is Reported and event.attempt >= run.attempt and isinstance(run.phase, _WITH_WORKERS):
        return _on_reported(run, event, now)  # Nearly all events are reports: skip the checks below.
    if isinstance(event, events.Note):
        return run, []
    if isinstance(event, events.DriverStarted):
        return _on_driver_started(run, event, now)
    if isinstance(event, events.CheckpointsFound):
        return _on_checkpoints_found(run, event), []
    if isinstance(event, events.ValidationEnded):
        return _on_validation_ended(run, event)
    if isinstance(event, events.RetentionSet):
        return (run if run.retention == event.retention else replace(run, retention=event.retention)), []
    if isinstance(event, events.PinsSet):
        return _on_pins_set(run, event)
    if event.attempt < run.attempt or isinstance(run.phase, state.Finished):
        return run, []  # Sent by workers that are already gone.

    match run.phase:
        case Running():
            after = _step_running(run, run.phase, event, now)
        case Stopping():
            after = _step_stopping(run, run.phase, event, now)
        case state.BackingOff() | state.Restoring() | state.Waiting():
            after = _step_without_workers(run, event, now)
        case state.Validating():
            after = _step_validating(run, event)
        case _:
            after = None
    if after is None:
        raise InvalidTransition(f"{event} in {run.phase}")
    return after


def step_reports(run: Run, batch: Sequence[Event], start: int) -> tuple[Run, list[Reported], int]:
    """Apply the reports of metrics only with which `batch[start:]` begins, as `step` would one by one.

    Return the run, the reports that changed it, and where the rest of the batch begins, which `step` handles. Nearly
    all events are such reports, and a run for each of them would cost more than all else that is done with it.
    """
    phase = run.phase
    live = phase if isinstance(phase, Running) else phase.running if isinstance(phase, Stopping) else None
    if live is None or live.pending or live.reducing or live.positions or live.is_draining:
        return run, [], start
    progress, attempt, size = live.progress, run.attempt, run.size
    reached: dict[int, int] = {}
    effective: list[Reported] = []
    end = start
    for event in islice(batch, start, None):
        if type(event) is not Reported or event.attempt != attempt or not _has_only_metrics(event):
            break
        end += 1
        rank = event.rank
        assert 0 <= rank < size
        if event.seq > (reached[rank] if rank in reached else progress[rank]):
            reached[rank] = event.seq
            effective.append(event)
    if not effective:
        return run, effective, end
    for rank, seq in reached.items():
        progress = progress.advance(rank, seq)
    of_first = [(event.seq, event.metrics) for event in effective if event.rank == 0]
    live = replace(live, progress=progress, recent=(*live.recent, *of_first)[-state.NUM_RECENT_METRICS :])
    run = replace(
        _with_running_phase(run, live),
        num_reports=reached.get(0, run.num_reports),
        num_engine_failures_without_report=0,
    )
    return run, effective, end


def _has_only_metrics(event: Reported) -> bool:
    return event.checkpoint is None and not event.reduce and not event.data


def _step_running(run: Run, phase: Running, event: Event, now: float) -> StepResult | None:
    match event:
        case events.WorkerReady():
            return replace(run, phase=replace(phase, num_ready=phase.num_ready + 1)), []
        case events.WorkerReturned():
            return _on_worker_returned(run, event, now)
        case events.WorkerFailed(failure=failure):
            return _on_worker_failed(run, phase, failure, now)
        case events.StopRequested(now=True):
            ending: Ending = "failed" if phase.is_draining else _ending_when_stopped(phase)
            failed = phase.failed if phase.is_draining else state.NO_FAILURES
            return _stop_attempt(replace(run, stop_requested=True), phase, ending, failed)
        case events.StopRequested():
            return _on_stop_requested(run, phase)
        case events.PreemptionNoticeReceived():
            return _on_preemption_notice(run, phase, event, now)
        case events.WorkerHeld():
            return _on_worker_held(run, phase, event, now)
        case events.ResizeDue():
            return (run if phase.may_grow else replace(run, phase=replace(phase, may_grow=True))), []
        case events.HangSuspected(failure=failure, action="warn"):
            return replace(run, phase=replace(phase, hang=failure.message)), []
        case events.HangSuspected(failure=failure):
            return (run, []) if phase.is_draining else _on_worker_failed(run, phase, failure, now)
        case events.HangCleared():
            return replace(run, phase=replace(phase, hang="")), []
        case events.DeadlinePassed() if phase.failed and not phase.is_draining:
            return _drain(run, phase, now)
        case events.DeadlinePassed():
            return _stop_attempt(run, phase, "failed" if phase.failed else _ending_when_stopped(phase), phase.failed)
        case events.WorkersStopped() if phase.failed:
            run, _ = _stop_attempt(run, phase, "failed", phase.failed)
            return _finish_or_retry(replace(run, phase=replace(run.phase, stopped=True)), now)
    return _step_with_workers(run, event, now)


def _step_stopping(run: Run, phase: Stopping, event: Event, now: float) -> StepResult | None:
    match event:
        case events.WorkerFailed(failure=failure):
            # Usually a consequence of the first failure; `first_failure` decides once all failures have arrived.
            if phase.ending != "failed" or failure in phase.failed:
                return run, []
            return replace(run, phase=replace(phase, failed=phase.failed.with_failure(failure))), []
        case events.ExitDelayed(rank=rank, held_by=held_by) if rank not in phase.delayed_exits:
            return replace(run, phase=replace(phase, delayed_exits=phase.delayed_exits.put(rank, held_by))), []
        case events.DeadlinePassed() if phase.deadline is not None and not phase.stopped:
            return replace(run, phase=replace(phase, deadline=None)), [commands.StopWorkers(run.attempt, kill=True)]
        case events.WorkersStopped():
            return _finish_or_retry(replace(run, phase=replace(phase, stopped=True)), now)
        case events.StopRequested(now=True) if not phase.stopped:
            return replace(run, stop_requested=True), [commands.StopWorkers(run.attempt, kill=True)]
        case events.StopRequested():
            # The processes are ending anyway, but there must be no further attempt.
            return (run if run.stop_requested else replace(run, stop_requested=True)), []
        case events.PreemptionNoticeReceived(includes_driver=includes_driver):
            return (run if run.preempted or not includes_driver else replace(run, preempted=True)), []
        case events.WorkerReady() | events.WorkerReturned() | events.WorkerHeld() | events.DeadlinePassed():
            return run, []
        case events.ResizeDue() | events.HangSuspected() | events.HangCleared() | events.ExitDelayed():
            return run, []
    return _step_with_workers(run, event, now)


def _step_with_workers(run: Run, event: Event, now: float) -> StepResult | None:
    """Step while an attempt has workers, or has had them and commits are finishing."""
    match event:
        case events.CheckpointStaged():
            return _on_checkpoint_staged(run, event, now)
        case events.StagingFailed():
            return _on_staging_failed(run, event)
        case events.Committed():
            return _on_checkpoint_committed(run, event, now)
        case events.CommitFailed(seq=seq, error=error):
            run, actions = _finish_or_retry(_end_commit(run, seq), now)
            return run, [commands.Broadcast(event.attempt, messages.CheckpointRefused(seq, error)), *actions]
        case events.CapacityChanged(num_places=num_places):
            return replace(run, num_places=num_places), []
    return None


def _step_without_workers(run: Run, event: Event, now: float) -> StepResult | None:
    """Step before an attempt has workers: it backs off, a checkpoint is verified, or capacity is missing."""
    match run.phase, event:
        case state.BackingOff(), events.DeadlinePassed():
            return _begin_attempt(run, now)
        case state.Restoring(), events.CheckpointVerified():
            return _start_workers(run, run.latest, now)  # Use the current record: it may have been validated meanwhile.
        case state.Restoring(record=record), events.CheckpointBroken():
            return _begin_attempt(_with_checkpoints(run, tuple(c for c in run.checkpoints if c.seq != record.seq)), now)
        case _, events.CapacityChanged(num_places=num_places):
            run = replace(run, num_places=num_places)
            return _start_workers(run, run.latest, now) if isinstance(run.phase, state.Waiting) else (run, [])
        case _, events.StopRequested():
            return _finish_run(replace(run, stop_requested=True), "interrupted")
        case _, events.PreemptionNoticeReceived(includes_driver=includes_driver):
            # The engine's capacity already accounts for the loss of machines that could have hosted workers.
            return _finish_run(replace(run, preempted=True), "preempted") if includes_driver else (run, [])
        case state.BackingOff(), _:
            # A journal of a driver that did not back off yet.
            return step(_begin_attempt(run, now)[0], event, now)
    return None


def _step_validating(run: Run, event: Event) -> StepResult:
    match event:
        case events.StopRequested():
            # Validations stay pending for the next driver of the run.
            return _finish_run(replace(run, stop_requested=True), "complete")
        case events.PreemptionNoticeReceived(includes_driver=True):
            return _finish_run(replace(run, preempted=True), "complete")
    return run, []  # It fired, or was sent, just as the workers ended.


def next_deadline(run: Run) -> float | None:
    """When `DeadlinePassed` is due, or None."""
    match run.phase:
        case Running(stop_deadline=stop_deadline, failure_deadline=failure_deadline):
            return min((each for each in (stop_deadline, failure_deadline) if each is not None), default=None)
        case Stopping(deadline=deadline, stopped=False):
            return deadline
        case state.BackingOff(until=until):
            return until
    return None


def next_resize(run: Run) -> float | None:
    """When `ResizeDue` is due, or None. It is an event because a journal replay does not know the time."""
    live = run.phase
    if not isinstance(live, Running) or live.may_grow or not _can_grow(run):
        return None
    return live.started_at + run.resize_every_s


def _on_driver_started(run: Run, event: events.DriverStarted, now: float) -> StepResult:
    """Start a run, or take over from a lost driver, with fresh retry budgets."""
    if run.is_trained:
        return _reopen_to_validate(run, event)
    run = replace(
        run,
        size=event.size,
        sizes=event.sizes or (event.size,),
        num_places=event.num_places,
        resize_every_s=event.resize_every_s,
        max_failures=event.max_failures,
        max_preemption_failures=event.max_preemption_failures,
        controller_failure_limit=event.controller_failure_limit,
        exit_grace_s=event.exit_grace_s,
        retention=event.retention,
        pinned=_existing_seqs(event.pinned, run.checkpoints),
        initial=event.initial,
        purpose=event.purpose or run.purpose,
        validates=event.validates,
        validating=None,
        phase=state.Unopened(),
        attempt=run.attempt + 1,
        num_failures=0,
        num_preemptions=0,
        num_engine_failures=0,
        num_engine_failures_without_report=0,
        last_failure_fingerprint="",
        furthest_report=run.latest.seq if run.latest is not None else 0,
        num_failures_without_progress=0,
        committing=(),
        saves=(),
        last_save_s=None,
        stop_requested=False,
        preempted=False,
    )
    run, actions = _begin_attempt(run, now)
    run, more = _start_next_validation(run)
    return run, actions + more


def _reopen_to_validate(run: Run, event: events.DriverStarted) -> StepResult:
    """Training is complete; run the validations that are still pending."""
    if isinstance(run.phase, state.Finished) and not (event.validates and run.pending_validations):
        return run, []
    run = replace(
        run,
        retention=event.retention,
        pinned=_existing_seqs(event.pinned, run.checkpoints),
        validates=event.validates,
        validating=None,
        last_save_s=None,
        stop_requested=False,
        preempted=False,
        phase=state.Validating(),
    )
    run, actions = _start_next_validation(run)
    return (run, actions) if run.validating else _finish_run(run, "complete")


def _on_checkpoints_found(run: Run, event: events.CheckpointsFound) -> Run:
    """Trust storage where it disagrees with a torn or lost journal."""
    known = {record.seq for record in run.checkpoints}
    new = [record for record in event.records if record.seq not in known]
    missing = known & set(event.missing)
    if not new and not missing:
        return run
    attempt = max((record.attempt for record in new), default=run.attempt)
    if attempt > run.attempt:
        # The journal lost that attempt: the workers it last mentions did not write the reports found on storage.
        run = replace(run, phase=state.Unopened(), attempt=attempt)
    # A directory has one record: a reused name refers to the newer checkpoint.
    names = {record.name for record in new}
    still = [record for record in run.checkpoints if record.seq not in missing and record.name not in names]
    return replace(
        _with_checkpoints(run, tuple(sorted((*still, *new), key=lambda record: record.seq))),
        committing=(),  # Whatever is missing by now was refused, or its name has been reused.
        saves=(),
    )


def _begin_attempt(run: Run, now: float) -> StepResult:
    """Begin the attempt, from the newest checkpoint once it is verified."""
    if run.latest is None:
        return _start_workers(run, None, now)
    return replace(run, phase=state.Restoring(run.latest)), [commands.VerifyCheckpoint(run.attempt, run.latest)]


def _start_workers(run: Run, resume: CheckpointRecord | None, now: float) -> StepResult:
    seq = resume.seq if resume else 0
    size = _largest_fitting_size(run)
    if size is None:
        return replace(run, phase=state.Waiting(), num_reports=seq), []
    run = replace(
        run, size=size, phase=Running(state.RankProgress.start_at(size, seq), started_at=now), num_reports=seq
    )
    return run, [commands.StartWorkers(run.attempt, size, resume)]


def _largest_fitting_size(run: Run) -> int | None:
    fitting = len(run.sizes) if run.num_places is None else bisect_right(run.sizes, run.num_places)
    return run.sizes[fitting - 1] if fitting else None


def _can_grow(run: Run) -> bool:
    fitting = _largest_fitting_size(run)
    return fitting is not None and fitting > run.size


def _running_phase(run: Run) -> Running:
    phase = run.phase
    if isinstance(phase, Running):
        return phase
    assert isinstance(phase, Stopping)
    return phase.running


def _with_running_phase(run: Run, live: Running) -> Run:
    return replace(run, phase=live if isinstance(run.phase, Running) else replace(run.phase, running=live))


def _on_reported(run: Run, event: Reported, now: float) -> StepResult:
    live = _running_phase(run)
    rank, seq = event.rank, event.seq
    if seq <= live.progress[rank]:
        return run, []  # Duplicate: read back from the worker's file, or resent over the wire.
    if _has_only_metrics(event) and not (live.pending or live.reducing or live.positions or live.is_draining):
        return _record_metrics(run, live, event), []
    can_fail = isinstance(run.phase, Running) and not live.is_draining
    live = replace(live, progress=live.progress.advance(rank, seq))
    if run.num_engine_failures_without_report:
        run = replace(run, num_engine_failures_without_report=0)
    if rank == 0:
        live = replace(
            live,
            recent=live.recent[-state.NUM_RECENT_METRICS + 1 :] + ((seq, event.metrics),),
            # A checkpoint carries the metrics of rank 0, whichever rank reports first or brings files.
            pending=tuple(replace(p, metrics=event.metrics) if p.seq == seq else p for p in live.pending),
        )
        run = replace(run, num_reports=seq)
    if event.checkpoint is not None and seq not in live.refused:
        live = replace(live, pending=attempt_reports.announce_checkpoint(live, event, now))
        if live.fewest_reports is not None and live.fewest_reports[1] < seq and can_fail:
            return _fail_on_report_mismatch(run, live)
    if event.reduce:
        live, problem = attempt_reports.add_reduced_report(live, event)
        if problem is not None and can_fail:
            return _stop_attempt(run, live, "failed", live.failed.with_failure(problem))
    live = attempt_reports.complete_reductions(live)
    if event.data:
        at = live.positions.get(seq, _NO_POSITIONS).put(rank, event.data)
        live = replace(live, positions=live.positions.put(seq, at))
    live = replace(live, positions=attempt_reports.select_awaited_positions(live))
    return _request_commits(_with_running_phase(run, live))


def _record_metrics(run: Run, live: Running, event: Reported) -> Run:
    """Fast path of `_on_reported` for metrics-only reports when nothing is pending: most reports."""
    progress = live.progress.advance(event.rank, event.seq)
    if event.rank == 0:
        recent = (*live.recent[-state.NUM_RECENT_METRICS + 1 :], (event.seq, event.metrics))
        live = replace(live, progress=progress, recent=recent)
    else:
        live = replace(live, progress=progress)
    phase = live if isinstance(run.phase, Running) else replace(run.phase, running=live)
    num_reports = event.seq if event.rank == 0 else run.num_reports
    return replace(run, phase=phase, num_reports=num_reports, num_engine_failures_without_report=0)


def _on_checkpoint_staged(run: Run, event: events.CheckpointStaged, now: float) -> StepResult:
    live = _running_phase(run)
    if event.checkpoint is not None:
        live = attempt_reports.announce_late_checkpoint(run, live, event, event.checkpoint, now)
    for at, pending in enumerate(live.pending):
        if pending.seq == event.seq and event.staged.rank not in pending.parts:
            rank = event.staged.rank
            parts, unstaged = pending.parts.put(rank, event.staged), pending.unstaged.without(rank)
            pending = replace(pending, parts=parts, unstaged=unstaged)
            live = replace(live, pending=live.pending[:at] + (pending,) + live.pending[at + 1 :])
            return _request_commits(_with_running_phase(run, live))
    return run, []  # Duplicate.


def _on_staging_failed(run: Run, event: events.StagingFailed) -> StepResult:
    """Give up a checkpoint that can never be complete, for all ranks, including those that have not reached it yet."""
    live = _running_phase(run)
    is_pending = any(pending.seq == event.seq for pending in live.pending)
    if not is_pending:
        return run, []  # Already given up because of another rank.
    run, actions = _request_commits(_with_running_phase(run, _refuse_checkpoint(live, event.seq)))
    refusal = messages.CheckpointRefused(event.seq, event.error, event.rank, event.is_skipped)
    return run, [commands.Broadcast(event.attempt, refusal), *actions]


def _refuse_checkpoint(live: Running, refused: int) -> Running:
    return replace(
        live,
        pending=tuple(pending for pending in live.pending if pending.seq != refused),
        refused=tuple(seq for seq in (*live.refused, refused) if seq > live.progress.minimum),
    )


def _request_commits(run: Run) -> StepResult:
    """Request the commit of every checkpoint that all ranks have reached and fully staged, in order.

    If the attempt has failed and nothing else can be saved, it ends.
    """
    live = _running_phase(run)
    actions: list[Command] = []
    while live.pending:
        pending = live.pending[0]
        if pending.seq > live.progress.minimum or pending.unstaged:
            break
        parts = tuple(pending.parts.values())
        num_bytes = sum(file.size for part in parts for file in part.files)
        data = merge_rank_cursors(live.positions.get(pending.seq, _NO_POSITIONS).items())
        live = replace(live, pending=live.pending[1:], positions=live.positions.without(pending.seq))
        record = CheckpointRecord(pending.seq, pending.name, run.attempt, pending.metrics, num_bytes, data=data)
        if pending.validation is not None:
            record = replace(record, validation=pending.validation[1], status="PENDING_VALIDATION")
        run = replace(
            run,
            committing=run.committing + (pending.seq,),
            saves=run.saves + ((pending.seq, pending.since),),
        )
        actions.append(commands.CommitCheckpoint(record, parts))
    if actions:
        run = _with_running_phase(run, live)
    if isinstance(run.phase, Running) and _is_drained(live):
        run, stop = _stop_attempt(run, live, "failed", live.failed)
        actions += stop
    return run, actions


def _end_commit(run: Run, seq: int) -> Run:
    return replace(
        run,
        committing=tuple(s for s in run.committing if s != seq),
        saves=tuple(save for save in run.saves if save[0] != seq),
    )


def _on_checkpoint_committed(run: Run, event: events.Committed, now: float) -> StepResult:
    record = event.record
    replaced = tuple(c for c in run.checkpoints if c.name == record.name)
    checkpoints = tuple(c for c in run.checkpoints if c.name != record.name) + (record,)
    since = next((since for seq, since in run.saves if seq == record.seq), None)
    run, deleted = _apply_retention(_end_commit(run, record.seq), checkpoints)
    run = replace(run, last_save_s=now - since if since is not None else run.last_save_s)
    removed = tuple(c.seq for c in (*replaced, *deleted))
    actions: list[Command] = [commands.Broadcast(record.attempt, messages.CheckpointCommitted(record, removed))]
    actions += [commands.DeleteCheckpoint(c) for c in deleted]
    run, validations = _start_next_validation(run)
    run, more = _grow_after_commit(run) if isinstance(run.phase, Running) else _finish_or_retry(run, now)
    return run, actions + validations + more


def _grow_after_commit(run: Run) -> StepResult:
    """Grow after a commit if there is capacity: no saved step is lost."""
    live = _running_phase(run)
    if not live.may_grow or not _can_grow(run) or live.held_counts is not None or live.failed or live.num_returned:
        return run, []
    return _stop_attempt(run, live, "resized")


def _apply_retention(run: Run, checkpoints: tuple[CheckpointRecord, ...]) -> tuple[Run, tuple[CheckpointRecord, ...]]:
    """Return the run with the checkpoints that are kept, and the ones to delete."""
    if isinstance(run.phase, state.BackingOff | state.Restoring):
        # The newest is verified next; if it is broken, an older one is needed. The next commit applies retention.
        return _with_checkpoints(run, checkpoints), ()
    rules = run.retention
    kept = select_kept(checkpoints, rules.num_to_keep, rules.score_attribute, rules.score_order, run.pinned)
    kept_seqs = {record.seq for record in kept}
    return _with_checkpoints(run, kept), tuple(c for c in checkpoints if c.seq not in kept_seqs)


def _with_checkpoints(run: Run, checkpoints: tuple[CheckpointRecord, ...]) -> Run:
    """Replace the checkpoints of the run. A number may be reused, so the pin of a deleted checkpoint is dropped too."""
    return replace(run, checkpoints=checkpoints, pinned=_existing_seqs(run.pinned, checkpoints))


def _existing_seqs(seqs: tuple[int, ...], checkpoints: tuple[CheckpointRecord, ...]) -> tuple[int, ...]:
    return tuple(record.seq for record in checkpoints if record.seq in seqs) if seqs else ()


def _on_pins_set(run: Run, event: events.PinsSet) -> StepResult:
    """Always return a new run, even if nothing changed: the requester waits for this event."""
    if isinstance(run.phase, state.Finished):
        return run, []  # Nothing is deleted after the end.
    run = replace(run, pinned=_existing_seqs(event.seqs, run.checkpoints))
    run, deleted = _apply_retention(run, run.checkpoints)
    actions: list[Command] = [commands.DeleteCheckpoint(record) for record in deleted]
    if deleted and isinstance(run.phase, Running | Stopping):
        removal = messages.CheckpointsRemoved(tuple(record.seq for record in deleted))
        actions.insert(0, commands.Broadcast(run.attempt, removal))
    return run, actions


def _start_next_validation(run: Run) -> StepResult:
    """Start the next validation: one at a time, in commit order."""
    if not run.validates or run.validating is not None or not run.pending_validations:
        return run, []
    record = run.pending_validations[0]
    return replace(run, validating=(record.seq, record.attempt)), [commands.StartValidation(record)]


def _on_validation_ended(run: Run, event: events.ValidationEnded) -> StepResult:
    if run.validating != (event.seq, event.attempt) or isinstance(run.phase, state.Finished):
        return run, []
    run = replace(run, validating=None)
    actions: list[Command] = []
    record = next((c for c in run.pending_validations if (c.seq, c.attempt) == (event.seq, event.attempt)), None)
    if record is not None:  # Otherwise it was found broken meanwhile, or its name was reused.
        metrics = msgspec.json.encode(_decode_by_name(record.metrics) | _decode_by_name(event.metrics))
        validated = replace(record, status=event.status, metrics=msgspec.Raw(metrics))
        run, deleted = _apply_retention(run, tuple(validated if c is record else c for c in run.checkpoints))
        if isinstance(run.phase, Running | Stopping):
            message = messages.CheckpointValidated(validated, tuple(c.seq for c in deleted))
            actions.append(commands.Broadcast(run.attempt, message))
        actions += [commands.DeleteCheckpoint(c) for c in deleted]
    run, more = _start_next_validation(run)
    if isinstance(run.phase, state.Validating) and run.validating is None:
        run, _ = _finish_run(run, "complete")
    return run, actions + more


_decode_by_name = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _on_worker_returned(run: Run, event: events.WorkerReturned, now: float) -> StepResult:
    live = _running_phase(run)
    if event.rank in live.returned:
        return run, []  # Duplicate.
    fewest, most = live.fewest_reports, live.most_reports
    if not event.stopped:  # A rank that was stopped on purpose does not count as reporting less often.
        own = event.rank, event.num_reports, event.where
        fewest = own if fewest is None or own[1] < fewest[1] else fewest
        most = own if most is None or own[1] > most[1] else most
    live = replace(
        live,
        returned=live.returned.put(event.rank, True),
        num_stopped=live.num_stopped + event.stopped,
        fewest_reports=fewest,
        most_reports=most,
        lowest_end=_lowest_end(live, live.progress[event.rank]),
        held_counts=live.held_counts.without(event.rank) if live.held_counts is not None else None,
        stop_deadline=now + STOP_GRACE_S if event.stopped and live.stop_deadline is None else live.stop_deadline,
    )
    if live.is_draining:
        return _drain(run, live, now)
    # Check before the end of the attempt: a mismatch must not depend on which rank returns last.
    if live.fewest_reports is not None and any(p.seq > live.fewest_reports[1] for p in live.pending):
        return _fail_on_report_mismatch(run, live)
    if live.num_returned == run.size:
        ending: Ending = _ending_when_stopped(live) if live.num_stopped else "complete"
        failed = state.NO_FAILURES
        if ending == "complete" and fewest is not None and most is not None and fewest[1] < most[1]:
            ending, failed = "failed", failed.with_failure(attempt_reports.make_count_mismatch(fewest, most))
        return _stop_attempt(run, live, ending, failed, exit_by=now + run.exit_grace_s + EXIT_DELAY_NOTICE_S)
    return _agree_on_stop(run, live, now)


def _ending_when_stopped(live: Running) -> Ending:
    return "preempted" if live.notices is not None else "interrupted"


def _on_worker_failed(run: Run, live: Running, failure: WorkerFailure, now: float) -> StepResult:
    """Fail the attempt at the first failure, but let one that looks secondary wait for the failure that caused it."""
    if failure in live.failed:
        return run, []  # Duplicate.
    rank, last = failure.rank, live.progress[failure.rank]
    failed = live.failed.with_failure(failure)
    if failure.kind == "mismatch" and not live.is_draining:
        # Ranks that do not match may wait for each other for ever.
        return _stop_attempt(run, live, "failed", failed)
    # What a process had not staged when it ended can never be complete.
    lost = () if failure.is_process_alive else tuple(p.seq for p in live.pending if rank in p.unstaged)
    for seq in lost:
        live = _refuse_checkpoint(live, seq)
    live = replace(
        live,
        failed=failed,
        lowest_end=_lowest_end(live, last - 1 if last in lost else last),
        held_counts=live.held_counts.without(rank) if live.held_counts is not None else None,
    )
    all_ended = len(failed.by_rank) + live.num_returned >= run.size
    if live.is_draining or all_ended or not failed.are_all_secondary:
        run, actions = _drain(run, live, now)
    else:
        deadline = live.failure_deadline if live.failure_deadline is not None else now + SECONDARY_FAILURE_GRACE_S
        run, actions = _request_commits(replace(run, phase=replace(live, failure_deadline=deadline)))
    if isinstance(run.phase, Running):
        refusals = (messages.CheckpointRefused(seq, failure.message, rank) for seq in lost)
        actions = [*(commands.Broadcast(run.attempt, refusal) for refusal in refusals), *actions]
    return run, actions


def _lowest_end(live: Running, last: int) -> int:
    return last if live.lowest_end is None else min(live.lowest_end, last)


def _drain(run: Run, live: Running, now: float) -> StepResult:
    """Let the other ranks come to the last report of those that ended, and its checkpoint be stored; then stop.

    Nobody is told: a rank that is there, or past it, continues until it is killed, and another attempt repeats what it
    reports meanwhile.
    """
    if not live.is_draining:
        # Ranks that hang make no report: waiting for one would only delay the restart.
        grace_s = 0.0 if any(failure.kind == "hang" for failure in live.failed) else DRAIN_GRACE_S
        live = replace(live, is_draining=True, failure_deadline=now + grace_s)
    run, actions = _request_commits(replace(run, phase=live))
    if not isinstance(run.phase, Running):
        return run, actions
    # Ranks that were asked to hold must get on.
    run, more = _agree_on_stop(run, run.phase, now)
    return run, actions + more


def _is_drained(live: Running) -> bool:
    """Whether the attempt has failed, and no checkpoint of a report that all ranks can make is outstanding."""
    if not live.is_draining or live.lowest_end is None or live.progress.minimum < live.lowest_end:
        return False
    return not live.pending or live.pending[0].seq > live.lowest_end


def _fail_on_report_mismatch(run: Run, live: Running) -> StepResult:
    assert live.fewest_reports is not None
    pending = next(p for p in live.pending if p.seq > live.fewest_reports[1])
    failure = attempt_reports.make_mismatch(pending, *live.fewest_reports)
    return _stop_attempt(run, live, "failed", live.failed.with_failure(failure))


def _on_stop_requested(run: Run, live: Running) -> StepResult:
    if live.held_counts is not None or live.is_draining:
        # The ranks stop anyway, but there might be another attempt.
        return (run if run.stop_requested else replace(run, stop_requested=True)), []
    run = replace(run, stop_requested=True, phase=replace(live, held_counts=Trie()))
    return run, [commands.Broadcast(run.attempt, messages.Hold())]


def _on_preemption_notice(run: Run, live: Running, event: events.PreemptionNoticeReceived, now: float) -> StepResult:
    """Stop all ranks at one report, as for a requested stop, but with a deadline."""
    notices = (live.notices or state.PreemptionNotices()).with_notice(
        event.ranks, now + event.grace_s, event.includes_driver
    )
    first = live.held_counts is None and not live.is_draining
    live = replace(
        live,
        notices=notices,
        held_counts=Trie() if first else live.held_counts,
        stop_deadline=min(notices.deadline, live.stop_deadline if live.stop_deadline is not None else math.inf),
    )
    run = replace(run, phase=live, preempted=run.preempted or event.includes_driver)
    return run, [commands.Broadcast(run.attempt, messages.Hold())] if first else []


def _on_worker_held(run: Run, live: Running, event: events.WorkerHeld, now: float) -> StepResult:
    held_counts: Trie[tuple[int, int]] = live.held_counts or Trie()
    if event.rank in held_counts or event.rank in live.failed.by_rank:
        return run, []  # Duplicate, or sent before it failed.
    at = event.seq, event.num_checks
    live = replace(live, held_counts=held_counts.put(event.rank, at), asks=live.asks or event.asks)
    return _agree_on_stop(run, live, now)


def _agree_on_stop(run: Run, live: Running, now: float) -> StepResult:
    """Once every active rank has sent its report count, stop all ranks at the report after the highest count.

    If the user's code checks for preemption notices, stop one report later. Until all ranks know where to stop, none
    gets past its next report or check. So all ranks see the notice from the same check on: the one after the last that
    some rank made in vain, or the first after the next report.
    """
    num_ended = live.num_returned + len(live.failed.by_rank)
    if not live.held_counts or live.stop_at is not None or len(live.held_counts) + num_ended < run.size:
        return replace(run, phase=live), []
    preemption = live.preemption
    # After a failure, all ranks that still run may make the last report of the failed one.
    failed_at = live.lowest_end if live.failed and live.lowest_end is not None else 0
    highest, num_checks = max((*live.held_counts.values(), (failed_at, 0)))
    stop_at = highest + (2 if preemption is not None and live.asks else 1)
    last_s = run.last_save_s
    save = preemption is None or last_s is None or now + SAVE_TIME_FACTOR * last_s < preemption.deadline
    run = replace(run, phase=replace(live, stop_at=stop_at))
    return run, [commands.StopWorkersAt(run.attempt, stop_at, save, preemption, num_checks if preemption else 0)]


def _stop_attempt(
    run: Run,
    live: Running,
    ending: Ending,
    failed: state.AttemptFailures = state.NO_FAILURES,
    *,
    exit_by: float | None = None,
) -> StepResult:
    """End the attempt: kill the workers, or let them exit by themselves until `exit_by`."""
    has_known_cause = not failed.are_all_secondary or any(failure.kind != "user" for failure in failed)
    if ending == "failed" and live.fewest_reports is not None and not has_known_cause:
        failed = _blame_early_return(live.fewest_reports, failed)
    run = replace(run, phase=Stopping(live, ending, failed, deadline=exit_by))
    return run, [commands.StopWorkers(run.attempt, kill=exit_by is None)]


def _blame_early_return(fewest_reports: tuple[int, int, str], failed: state.AttemptFailures) -> state.AttemptFailures:
    """Add the cause: the other ranks lost their connection to one whose function had returned."""
    rank, num_reports, where = fewest_reports
    broken = next(iter(failed))
    waited_at = f" at {broken.frames[-1].partition(' in ')[0]}" if broken.frames else ""
    last = f", the last at {where}," if where else ""
    reports = attempt_reports.format_report_count(num_reports)
    message = f"returned after {reports}{last} while rank {broken.rank} still waited for it{waited_at}"
    return failed.with_failure(WorkerFailure(rank, "mismatch", message, at=broken.at))


def _finish_or_retry(run: Run, now: float) -> StepResult:
    """Finish or retry, once the workers are gone and no commit is in flight."""
    phase = run.phase
    if not isinstance(phase, Stopping) or not phase.stopped or run.committing:
        return run, []
    may_continue = not run.stop_requested and not run.preempted
    ending = "preempted" if _is_lost_to_preemption(run, phase) else phase.ending
    match ending:
        case "resized" if may_continue:
            return _begin_next_attempt(run, None, now)
        case "resized":
            return _finish_run(run, "preempted" if run.preempted else "interrupted")
        case "preempted" if may_continue and retry_policy.has_lost_capacity(run):
            return _begin_next_attempt(run, None, now)
        case "preempted" if may_continue and not 0 <= run.max_preemption_failures <= run.num_preemptions:
            return _begin_next_attempt(run, "preemptions", now)
        case "failed" if may_continue:
            cause = retry_policy.first_failure(phase.failures)
            fingerprint = retry_policy.failure_fingerprint(cause, phase.running.progress[cause.rank])
            decision = retry_policy.decide_retry(run, phase.failures, fingerprint)
            if isinstance(decision, retry_policy.Retry):
                run = replace(
                    run,
                    last_failure_fingerprint=fingerprint,
                    furthest_report=max(run.furthest_report, run.num_reports),
                    num_failures_without_progress=_count_without_progress(run, decision.charged),
                )
                # Whether to back off does not depend on the time, which a journal replay does not know.
                backoff_s = retry_policy.compute_backoff_s(run.num_failures_without_progress)
                if backoff_s == 0 or decision.charged is None:
                    return _begin_next_attempt(run, decision.charged, now)
                delay_s = max(0.0, phase.running.started_at + backoff_s - now)
                run = _count_attempt(run, decision.charged)
                return replace(run, phase=state.BackingOff(delay_s, now + delay_s)), []
            return _finish_run(run, "failed", phase.failures, decision.reason)
        case "complete" if may_continue and run.validating is not None:
            return replace(run, phase=state.Validating()), []
    return _finish_run(run, ending, phase.failures)


def _is_lost_to_preemption(run: Run, phase: Stopping) -> bool:
    """Whether an announced preemption killed a worker before it reached the agreed report."""
    if phase.ending != "failed":
        return False
    notices = phase.running.notices
    cause = retry_policy.first_failure(phase.failures)
    return cause.kind in ("killed", "preempted", "exited") and (
        run.preempted or (notices is not None and cause.rank in notices.ranks)
    )


def _count_without_progress(run: Run, charged: retry_policy.Budget | None) -> int:
    if retry_policy.has_progressed(run):
        return 0
    return run.num_failures_without_progress + (charged is not None)


def _begin_next_attempt(run: Run, charged: retry_policy.Budget | None, now: float) -> StepResult:
    return _begin_attempt(_count_attempt(run, charged), now)


def _count_attempt(run: Run, charged: retry_policy.Budget | None) -> Run:
    return replace(
        run,
        attempt=run.attempt + 1,
        num_failures=run.num_failures + (charged == "failures"),
        num_preemptions=run.num_preemptions + (charged == "preemptions"),
        num_engine_failures=run.num_engine_failures + (charged == "engine failures"),
        num_engine_failures_without_report=run.num_engine_failures_without_report + (charged == "engine failures"),
    )


def _finish_run(run: Run, ending: Ending, failures: tuple[WorkerFailure, ...] = (), reason: str = "") -> StepResult:
    # Times are only valid on the clock of this driver.
    return replace(run, phase=state.Finished(ending, failures, reason), last_save_s=None), []
