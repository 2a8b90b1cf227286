"""The life of one training run, as a pure function.

    step(run, event, now) -> (run, commands)

Nothing here starts a process, reads a clock or touches a disk: the controller feeds events in and carries commands
out. Every transition a run can make is in this file; an event that does not fit raises `InvalidTransition`. What the
reports of ranks come to together is in `reports.py`. A driver that was lost is recovered by playing its journal
through this same function.
"""

import math
from bisect import bisect_right

import msgspec
from msgspec.structs import replace

from paceline._control.commands import (
    AnnounceCommit,
    AnnounceRefusal,
    AnnounceRemoval,
    AnnounceValidation,
    Command,
    CommitCheckpoint,
    DeleteCheckpoint,
    HoldWorkers,
    StartValidation,
    StartWorkers,
    StopWorkers,
    StopWorkersAt,
    VerifyCheckpoint,
)
from paceline._control.events import (
    CapacityChanged,
    CheckpointBroken,
    CheckpointRecord,
    CheckpointsFound,
    CheckpointStaged,
    CheckpointVerified,
    CommitFailed,
    Committed,
    DeadlinePassed,
    DriverStarted,
    Event,
    Failure,
    HangPassed,
    HangSuspected,
    Note,
    PinsSet,
    PreemptionTold,
    Reported,
    ResizeDue,
    RetentionSet,
    StagingFailed,
    StopRequested,
    ValidationEnded,
    WorkerFailed,
    WorkerHeld,
    WorkerReady,
    WorkerReturned,
    WorkersStopped,
)
from paceline._control.policy import Budget, Retry, decided, first_failure, has_lost_places, place_of
from paceline._control.reports import announced, awaited, joined_by, reduced
from paceline._control.run import (
    NO_FAILURES,
    RECENT,
    Ending,
    Failures,
    Finished,
    Notices,
    Progress,
    Restoring,
    Run,
    Running,
    Stopping,
    Unopened,
    Validating,
    Waiting,
)
from paceline._core.cursor import Cursors, together
from paceline._core.trie import Trie
from paceline._storage.retention import kept

STOP_GRACE_S = 10.0
"""How long ranks may differ in coming to the report at which they were asked to stop."""
ECHO_GRACE_S = 0.5
"""How long a broken connection may be known before the death that broke it."""
SAVE_MARGIN = 1.5
"""How much longer than the last one a checkpoint may take, when there is a deadline."""

Step = tuple[Run, list[Command]]

_NOWHERE: Trie[Cursors] = Trie()

_LIVE = (Running, Stopping)


class InvalidTransition(Exception):
    """An event arrived that no phase of the run can take: a bug in this library."""


def step(run: Run, event: Event, now: float = 0.0) -> Step:
    if type(event) is Reported and event.attempt >= run.attempt and isinstance(run.phase, _LIVE):
        return _reported(run, event, now)  # Nearly all events are these: the questions below are not asked of them.
    if isinstance(event, Note):
        return run, []
    if isinstance(event, DriverStarted):
        return _opened(run, event, now)
    if isinstance(event, CheckpointsFound):
        return _found(run, event), []
    if isinstance(event, ValidationEnded):
        return _validated(run, event)
    if isinstance(event, RetentionSet):
        return (run if run.retention == event.retention else replace(run, retention=event.retention)), []
    if isinstance(event, PinsSet):
        return _pinned(run, event)
    if event.attempt < run.attempt or isinstance(run.phase, Finished):
        return run, []  # Said by workers that are already gone.

    match run.phase, event:
        case Running() | Stopping(), CheckpointStaged():
            return _staged(run, event)
        case Running() | Stopping(), StagingFailed():
            return _unstaged(run, event)
        case Running() | Stopping(), Committed():
            return _committed(run, event, now)
        case Running() | Stopping(), CommitFailed(seq=seq, error=error):
            run, commands = _settled(_no_longer_committing(run, seq), now)
            return run, [AnnounceRefusal(event.attempt, seq, error), *commands]

        case Running() as phase, WorkerReady():
            return replace(run, phase=replace(phase, num_ready=phase.num_ready + 1)), []
        case Running(), WorkerReturned():
            return _returned(run, event, now)
        case Running() as phase, WorkerFailed(failure=failure):
            return _failed(run, phase, failure, now)
        case Stopping() as phase, WorkerFailed(failure=failure):
            # Nearly always the echo of the first; `first_failure` decides once all have spoken.
            if phase.ending != "failed" or failure in phase.failed:
                return run, []
            return replace(run, phase=replace(phase, failed=phase.failed.followed_by(failure))), []

        case Running(), StopRequested(now=False):
            return _stop_requested(run)
        case Running() as phase, StopRequested(now=True):
            return _stopping(replace(run, stop_requested=True), phase, _unfinished(phase))
        case Running() as phase, PreemptionTold():
            return _preempted(run, phase, event, now)
        case Running() | Stopping() | Restoring() | Waiting(), CapacityChanged(num_places=num_places):
            run = replace(run, num_places=num_places)
            return _running(run, run.latest, now) if isinstance(run.phase, Waiting) else (run, [])
        case Running() as phase, ResizeDue():
            return (run if phase.may_grow else replace(run, phase=replace(phase, may_grow=True))), []
        case Stopping() as phase, StopRequested(now=True) if not phase.stopped:
            run = replace(run, stop_requested=True)
            return run, [StopWorkers(run.attempt, kill=True)]
        case Running() as phase, WorkerHeld():
            return _held(run, phase, event, now)
        case Running() as phase, HangSuspected(failure=failure, action=action):
            if action == "warn":
                return replace(run, phase=replace(phase, hang=failure.message)), []
            return _stopping(run, phase, "failed", phase.failed.followed_by(failure))
        case Running() as phase, HangPassed():
            return replace(run, phase=replace(phase, hang="")), []
        case Running() as phase, DeadlinePassed():
            return _stopping(run, phase, "failed" if phase.failed else _unfinished(phase), phase.failed)
        case Stopping() as phase, WorkersStopped():
            return _settled(replace(run, phase=replace(phase, stopped=True)), now)

        case Restoring(), CheckpointVerified():
            return _running(run, run.latest, now)  # Not as it was then: it may have been validated since.
        case Restoring(record=record), CheckpointBroken():
            return _restored(_holding(run, tuple(c for c in run.checkpoints if c.seq != record.seq)), now)
        case Restoring() | Waiting(), StopRequested():
            return _finished(replace(run, stop_requested=True), "interrupted")
        case Restoring() | Waiting(), PreemptionTold(whole=whole):
            # Of machines that workers might have been put on, the engine's room tells.
            return _finished(replace(run, preempted=True), "preempted") if whole else (run, [])

        case Stopping(), StopRequested():
            # The processes are ending anyway, but there must be no further attempt.
            return (run if run.stop_requested else replace(run, stop_requested=True)), []
        case Stopping(), PreemptionTold(whole=whole):
            return (run if run.preempted or not whole else replace(run, preempted=True)), []

        case Validating(), StopRequested():
            # They stay pending, for the next driver of the run.
            return _finished(replace(run, stop_requested=True), "complete")
        case Validating(), PreemptionTold(whole=True):
            return _finished(replace(run, preempted=True), "complete")
        case Validating(), _:
            return run, []  # Due, or said, in the moment in which the workers ended.

        case Stopping(), WorkerReady() | WorkerReturned() | WorkerHeld() | DeadlinePassed() | ResizeDue():
            return run, []
        case Stopping(), HangSuspected() | HangPassed():
            return run, []

    raise InvalidTransition(f"{event} in {run.phase}")


def deadline(run: Run) -> float | None:
    """When `DeadlinePassed` is due, if it is."""
    return run.phase.stop_by if isinstance(run.phase, Running) else None


def resize_due(run: Run) -> float | None:
    """When `ResizeDue` is due, if it is. An event, for whoever replays the journal does not know the time."""
    live = run.phase
    if not isinstance(live, Running) or live.may_grow or not _has_room(run):
        return None
    return live.began + run.resize_every_s


def _opened(run: Run, event: DriverStarted, now: float) -> Step:
    """A driver begins, or takes over from one that was lost, with budgets of its own."""
    if run.is_trained:
        return _opened_to_validate(run, event)
    run = replace(
        run,
        size=event.size,
        sizes=event.sizes or (event.size,),
        num_places=event.num_places,
        resize_every_s=event.resize_every_s,
        max_failures=event.max_failures,
        max_preemption_failures=event.max_preemption_failures,
        controller_failure_limit=event.controller_failure_limit,
        retention=event.retention,
        pinned=_there(event.pinned, run.checkpoints),
        initial=event.initial,
        purpose=event.purpose or run.purpose,
        validates=event.validates,
        validating=None,
        phase=Unopened(),
        attempt=run.attempt + 1,
        num_failures=0,
        num_preemptions=0,
        num_engine_failures=0,
        num_engine_failures_in_place=0,
        last_place="",
        committing=(),
        saves=(),
        last_save_s=None,
        stop_requested=False,
        preempted=False,
    )
    run, commands = _restored(run, now)
    run, more = _validations(run)
    return run, commands + more


def _opened_to_validate(run: Run, event: DriverStarted) -> Step:
    """Nothing is left to be trained; perhaps something to be validated."""
    if isinstance(run.phase, Finished) and not (event.validates and run.unvalidated):
        return run, []
    run = replace(
        run,
        retention=event.retention,
        pinned=_there(event.pinned, run.checkpoints),
        validates=event.validates,
        validating=None,
        last_save_s=None,
        stop_requested=False,
        preempted=False,
        phase=Validating(),
    )
    run, commands = _validations(run)
    return (run, commands) if run.validating else _finished(run, "complete")


def _found(run: Run, event: CheckpointsFound) -> Run:
    """Believe storage where the journal, torn or lost, tells otherwise."""
    known = {record.seq for record in run.checkpoints}
    new = [record for record in event.records if record.seq not in known]
    gone = known & set(event.missing)
    if not new and not gone:
        return run
    attempt = max((record.attempt for record in new), default=0)
    if attempt > run.attempt:
        # The journal lost that attempt: the workers it last told of are not the ones whose reports lie there.
        run = replace(run, phase=Unopened(), attempt=attempt)
    # One directory has one record: a name that was used again stands for the newer checkpoint.
    names = {record.name for record in new}
    still = [record for record in run.checkpoints if record.seq not in gone and record.name not in names]
    return replace(
        _holding(run, tuple(sorted((*still, *new), key=lambda record: record.seq))),
        committing=(),  # What is not there by now was refused, or its name has been used again since.
        saves=(),
    )


def _restored(run: Run, now: float) -> Step:
    """Begin the attempt, from the newest checkpoint once it is known to be whole."""
    if run.latest is None:
        return _running(run, None, now)
    return replace(run, phase=Restoring(run.latest)), [VerifyCheckpoint(run.attempt, run.latest)]


def _running(run: Run, resume: CheckpointRecord | None, now: float) -> Step:
    seq = resume.seq if resume else 0
    size = _fitting(run)
    if size is None:
        return replace(run, phase=Waiting(), num_reports=seq), []
    run = replace(run, size=size, phase=Running(Progress.of(size, seq), began=now), num_reports=seq)
    return run, [StartWorkers(run.attempt, size, resume)]


def _fitting(run: Run) -> int | None:
    """The most workers that are allowed and that there is room for."""
    fitting = len(run.sizes) if run.num_places is None else bisect_right(run.sizes, run.num_places)
    return run.sizes[fitting - 1] if fitting else None


def _has_room(run: Run) -> bool:
    """Whether there could be more workers than there are."""
    fitting = _fitting(run)
    return fitting is not None and fitting > run.size


def _live(run: Run) -> Running:
    phase = run.phase
    if isinstance(phase, Running):
        return phase
    assert isinstance(phase, Stopping)
    return phase.running


def _with_live(run: Run, live: Running) -> Run:
    phase = live if isinstance(run.phase, Running) else replace(run.phase, running=live)
    return replace(run, phase=phase)


def _reported(run: Run, event: Reported, now: float) -> Step:
    live = _live(run)
    rank, seq = event.rank, event.seq
    if seq <= live.progress[rank]:
        return run, []  # Said twice: read back from the worker's file, or sent again by the wire.
    if _only_tells(event) and not (live.pending or live.reducing or live.positions):
        return _told(run, live, event), []
    least = live.progress.least
    live = replace(live, progress=live.progress.advanced(rank, seq))
    if run.num_engine_failures_in_place:
        run = replace(run, num_engine_failures_in_place=0)
    if rank == 0:
        live = replace(
            live,
            recent=live.recent[-RECENT + 1 :] + ((seq, event.metrics),),
            # A checkpoint carries the metrics of rank 0, whichever rank came first and whichever brings files.
            pending=tuple(replace(p, metrics=event.metrics) if p.seq == seq else p for p in live.pending),
        )
        run = replace(run, num_reports=seq)
    if event.checkpoint is not None and seq not in live.refused:
        live = replace(live, pending=announced(live, event, now))
        if live.fewest is not None and live.fewest[1] < seq and isinstance(run.phase, Running):
            return _mismatched(run, live)
    if event.reduce:
        live, problem = joined_by(live, event)
        if problem is not None and isinstance(run.phase, Running):
            return _stopping(run, live, "failed", live.failed.followed_by(problem))
    if live.reducing and live.progress.least > least:
        live = reduced(live)
    if event.data:
        at = live.positions.get(seq, _NOWHERE).put(rank, event.data)
        live = replace(live, positions=live.positions.put(seq, at))
    if live.positions and live.progress.least > least:
        live = replace(live, positions=awaited(live))
    return _commits(_with_live(run, live))


def _only_tells(event: Reported) -> bool:
    """Metrics, and nothing that somebody waits for."""
    return event.checkpoint is None and not event.reduce and not event.data


def _told(run: Run, live: Running, event: Reported) -> Run:
    """What `_reported` comes to for one that only tells, where nothing is waited for: most reports are such."""
    progress = live.progress.advanced(event.rank, event.seq)
    if event.rank == 0:
        recent = (*live.recent[-RECENT + 1 :], (event.seq, event.metrics))
        live = replace(live, progress=progress, recent=recent)
    else:
        live = replace(live, progress=progress)
    phase = live if isinstance(run.phase, Running) else replace(run.phase, running=live)
    num_reports = event.seq if event.rank == 0 else run.num_reports
    return replace(run, phase=phase, num_reports=num_reports, num_engine_failures_in_place=0)


def _staged(run: Run, event: CheckpointStaged) -> Step:
    live = _live(run)
    for at, pending in enumerate(live.pending):
        if pending.seq == event.seq and event.staged.rank not in pending.parts:
            pending = replace(pending, parts=pending.parts.put(event.staged.rank, event.staged))
            live = replace(live, pending=live.pending[:at] + (pending,) + live.pending[at + 1 :])
            return _commits(_with_live(run, live))
    return run, []  # Said twice.


def _unstaged(run: Run, event: StagingFailed) -> Step:
    """Give up a checkpoint that can never be whole: for all ranks, those that have yet to come to it included."""
    live = _live(run)
    known = any(pending.seq == event.seq for pending in live.pending)
    if not known:
        return run, []  # Given up before, because of another rank.
    live = replace(
        live,
        pending=tuple(pending for pending in live.pending if pending.seq != event.seq),
        refused=tuple(seq for seq in (*live.refused, event.seq) if seq > live.progress.least),
    )
    run, commands = _commits(_with_live(run, live))
    return run, [AnnounceRefusal(event.attempt, event.seq, event.error, event.rank), *commands]


def _commits(run: Run) -> Step:
    """Ask for every checkpoint that all ranks have reached and whose files are all staged, in order."""
    live = _live(run)
    commands: list[Command] = []
    while live.pending:
        pending = live.pending[0]
        if pending.seq > live.progress.least or len(pending.parts) < pending.num_announced:
            break
        parts = tuple(pending.parts.values())
        num_bytes = sum(file.size for part in parts for file in part.files)
        data = together(live.positions.get(pending.seq, _NOWHERE).items())
        live = replace(live, pending=live.pending[1:], positions=live.positions.without(pending.seq))
        record = CheckpointRecord(pending.seq, pending.name, run.attempt, pending.metrics, num_bytes, data=data)
        if pending.validation is not None:
            record = replace(record, validation=pending.validation[1], status="PENDING_VALIDATION")
        run = replace(
            run,
            committing=run.committing + (pending.seq,),
            saves=run.saves + ((pending.seq, pending.since),),
        )
        commands.append(CommitCheckpoint(record, parts))
    return (_with_live(run, live), commands) if commands else (run, [])


def _no_longer_committing(run: Run, seq: int) -> Run:
    return replace(
        run,
        committing=tuple(s for s in run.committing if s != seq),
        saves=tuple(save for save in run.saves if save[0] != seq),
    )


def _committed(run: Run, event: Committed, now: float) -> Step:
    record = event.record
    replaced = tuple(c for c in run.checkpoints if c.name == record.name)
    checkpoints = tuple(c for c in run.checkpoints if c.name != record.name) + (record,)
    since = next((since for seq, since in run.saves if seq == record.seq), None)
    run, gone = _retained(_no_longer_committing(run, record.seq), checkpoints)
    run = replace(run, last_save_s=now - since if since is not None else run.last_save_s)
    removed = tuple(c.seq for c in (*replaced, *gone))
    commands: list[Command] = [AnnounceCommit(record.attempt, record, removed)]
    commands += [DeleteCheckpoint(c) for c in gone]
    run, validations = _validations(run)
    run, more = _grown(run) if isinstance(run.phase, Running) else _settled(run, now)
    return run, commands + validations + more


def _grown(run: Run) -> Step:
    """After a commit, workers for whom there is room now may join: no step is lost that was saved."""
    live = _live(run)
    if not live.may_grow or not _has_room(run) or live.held is not None or live.failed or live.num_returned:
        return run, []
    return _stopping(run, live, "resized")


def _retained(run: Run, checkpoints: tuple[CheckpointRecord, ...]) -> tuple[Run, tuple[CheckpointRecord, ...]]:
    """The run with those that are kept, and those that may go."""
    rules = run.retention
    keep = kept(checkpoints, rules.num_to_keep, rules.score_attribute, rules.score_order, run.pinned)
    stays = {record.seq for record in keep}
    return _holding(run, keep), tuple(c for c in checkpoints if c.seq not in stays)


def _holding(run: Run, checkpoints: tuple[CheckpointRecord, ...]) -> Run:
    """With these checkpoints and no others. A number may be given again, so the pin of one that is gone goes too."""
    return replace(run, checkpoints=checkpoints, pinned=_there(run.pinned, checkpoints))


def _there(seqs: tuple[int, ...], checkpoints: tuple[CheckpointRecord, ...]) -> tuple[int, ...]:
    return tuple(record.seq for record in checkpoints if record.seq in seqs) if seqs else ()


def _pinned(run: Run, event: PinsSet) -> Step:
    """Always a run of its own, though nothing may have changed: whoever asked waits to be told."""
    if isinstance(run.phase, Finished):
        return run, []  # Nothing is deleted any more.
    run = replace(run, pinned=_there(event.seqs, run.checkpoints))
    run, gone = _rescored(run, run.checkpoints)
    commands: list[Command] = [DeleteCheckpoint(record) for record in gone]
    if gone and isinstance(run.phase, Running | Stopping):
        commands.insert(0, AnnounceRemoval(run.attempt, tuple(record.seq for record in gone)))
    return run, commands


def _validations(run: Run) -> Step:
    """One at a time, in the order of commits."""
    if not run.validates or run.validating is not None or not run.unvalidated:
        return run, []
    record = run.unvalidated[0]
    return replace(run, validating=(record.seq, record.attempt)), [StartValidation(record)]


def _validated(run: Run, event: ValidationEnded) -> Step:
    if run.validating != (event.seq, event.attempt) or isinstance(run.phase, Finished):
        return run, []
    run = replace(run, validating=None)
    commands: list[Command] = []
    record = next((c for c in run.unvalidated if (c.seq, c.attempt) == (event.seq, event.attempt)), None)
    if record is not None:  # Else it was found broken meanwhile, or its name was used again.
        validated = replace(record, status=event.status, metrics=_merged(record.metrics, event.metrics))
        run, gone = _rescored(run, tuple(validated if c is record else c for c in run.checkpoints))
        if isinstance(run.phase, Running | Stopping):
            commands.append(AnnounceValidation(run.attempt, validated, tuple(c.seq for c in gone)))
        commands += [DeleteCheckpoint(c) for c in gone]
    run, more = _validations(run)
    if isinstance(run.phase, Validating) and run.validating is None:
        run, _ = _finished(run, "complete")
    return run, commands + more


def _rescored(run: Run, checkpoints: tuple[CheckpointRecord, ...]) -> tuple[Run, tuple[CheckpointRecord, ...]]:
    if isinstance(run.phase, Restoring):
        # The newest is being checked: should it be broken, an older one is what is left. The next commit decides.
        return _holding(run, checkpoints), ()
    return _retained(run, checkpoints)


def _merged(reported: msgspec.Raw, found: msgspec.Raw) -> msgspec.Raw:
    both = _by_name(reported) | _by_name(found)
    return msgspec.Raw(msgspec.json.encode(both))


_by_name = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _returned(run: Run, event: WorkerReturned, now: float) -> Step:
    live = _live(run)
    if event.rank in live.returned:
        return run, []  # Said twice.
    live = replace(
        live,
        returned=live.returned.put(event.rank, True),
        num_stopped=live.num_stopped + event.stopped,
        # A rank that was stopped on purpose is not one that reports less often.
        fewest=live.fewest if event.stopped else _fewer(live.fewest, event),
        held=live.held.without(event.rank) if live.held is not None else None,
        stop_by=now + STOP_GRACE_S if event.stopped and live.stop_by is None else live.stop_by,
    )
    # Before the end is looked at: whether ranks fit together must not depend on which of them returns last.
    if live.fewest is not None and any(p.seq > live.fewest[1] for p in live.pending):
        return _mismatched(run, live)
    if live.num_returned == run.size:
        return _stopping(run, live, _unfinished(live) if live.num_stopped else "complete", kill=False)
    return _agreed(run, live, now)


def _unfinished(live: Running) -> Ending:
    """How an attempt ends that was asked to."""
    return "preempted" if live.notices is not None else "interrupted"


def _failed(run: Run, live: Running, failure: Failure, now: float) -> Step:
    """Stop at the first failure; but one that looks like the echo of a death waits for the news of that death."""
    if failure in live.failed:
        return run, []  # Said twice.
    failed = live.failed.followed_by(failure)
    all_ended = len(failed) + live.num_returned >= run.size
    if all_ended or not failed.are_echoes:
        return _stopping(run, live, "failed", failed)
    stop_by = min(live.stop_by or math.inf, now + ECHO_GRACE_S)
    return replace(run, phase=replace(live, failed=failed, stop_by=stop_by)), []


def _fewer(fewest: tuple[int, int, str] | None, event: WorkerReturned) -> tuple[int, int, str]:
    if fewest is not None and fewest[1] <= event.num_reports:
        return fewest
    return event.rank, event.num_reports, event.where


def _mismatched(run: Run, live: Running) -> Step:
    """A rank has returned without the report that the checkpoint of another rank waits for."""
    assert live.fewest is not None
    rank, num_reports, where = live.fewest
    pending = next(p for p in live.pending if p.seq > num_reports)
    last = f"; the last at {where}" if where else ""
    message = (
        f"ReportMismatchError: rank {pending.rank} waits for every rank in report {pending.seq} with a checkpoint, "
        f"called at {pending.where}, but rank {rank} returned after {num_reports} reports{last}"
    )
    failure = Failure(pending.rank, "mismatch", message, frames=(pending.where,), retriable=False)
    return _stopping(run, live, "failed", live.failed.followed_by(failure))


def _stop_requested(run: Run) -> Step:
    live = _live(run)
    if live.held is not None:
        # They stop anyway, but if only some machines go there would be a further attempt.
        return (run if run.stop_requested else replace(run, stop_requested=True)), []
    run = replace(run, stop_requested=True, phase=replace(live, held=Trie()))
    return run, [HoldWorkers(run.attempt)]


def _preempted(run: Run, live: Running, event: PreemptionTold, now: float) -> Step:
    """All ranks stop at one report, as when a stop is requested; but there is a deadline."""
    told = (live.notices or Notices()).joined_by(event.ranks, now + event.grace_s, event.whole)
    first = live.held is None
    live = replace(
        live,
        notices=told,
        held=Trie() if first else live.held,
        stop_by=min(told.deadline, live.stop_by if live.stop_by is not None else math.inf),
    )
    run = replace(run, phase=live, preempted=run.preempted or event.whole)
    return run, [HoldWorkers(run.attempt)] if first else []


def _held(run: Run, live: Running, event: WorkerHeld, now: float) -> Step:
    held: Trie[int] = live.held or Trie()
    if event.rank in held:
        return run, []  # Said twice.
    live = replace(live, held=held.put(event.rank, event.seq), asks=live.asks or event.asks)
    return _agreed(run, live, now)


def _agreed(run: Run, live: Running, now: float) -> Step:
    """Once every rank still at work has said its count, all stop at the report after the highest.

    Where the code looks for notices of preemption it is one report more: until all know where they stop, none gets
    past the report after the highest, so in the step after that one all see the notice, and none saw it before.
    """
    if not live.held or live.stop_at is not None or len(live.held) + live.num_returned < run.size:
        return replace(run, phase=live), []
    told = live.preemption
    stop_at = max(live.held.values()) + (2 if told is not None and live.asks else 1)
    save = told is None or run.last_save_s is None or now + SAVE_MARGIN * run.last_save_s < told.deadline
    run = replace(run, phase=replace(live, stop_at=stop_at))
    return run, [StopWorkersAt(run.attempt, stop_at, save, told if live.asks else None)]


def _stopping(run: Run, live: Running, ending: Ending, failed: Failures = NO_FAILURES, *, kill: bool = True) -> Step:
    return replace(run, phase=Stopping(live, ending, failed)), [StopWorkers(run.attempt, kill)]


def _settled(run: Run, now: float) -> Step:
    """Finish or try again, once the workers are gone and no commit is in flight."""
    phase = run.phase
    if not isinstance(phase, Stopping) or not phase.stopped or run.committing:
        return run, []
    goes_on = not run.stop_requested and not run.preempted
    ending = "preempted" if _taken(run, phase) else phase.ending
    match ending:
        case "resized" if goes_on:
            return _again(run, None, now)
        case "resized":
            return _finished(run, "preempted" if run.preempted else "interrupted")
        case "preempted" if goes_on and has_lost_places(run):
            return _again(run, None, now)
        case "preempted" if goes_on and not 0 <= run.max_preemption_failures <= run.num_preemptions:
            return _again(run, "preemptions", now)
        case "failed" if goes_on:
            cause = first_failure(phase.failures)
            place = place_of(cause, phase.running.progress[cause.rank])
            decision = decided(run, phase.failures, place)
            if isinstance(decision, Retry):
                return _again(replace(run, last_place=place), decision.charged, now)
            return _finished(run, "failed", phase.failures, decision.reason)
        case "complete" if goes_on and run.validating is not None:
            return replace(run, phase=Validating()), []
    return _finished(run, ending, phase.failures)


def _taken(run: Run, phase: Stopping) -> bool:
    """The machine took a worker before it came to the agreed report, as was foretold."""
    if phase.ending != "failed":
        return False
    told = phase.running.notices
    cause = first_failure(phase.failures)
    return cause.kind in ("killed", "preempted", "exited") and (
        run.preempted or (told is not None and cause.rank in told.ranks)
    )


def _again(run: Run, charged: Budget | None, now: float) -> Step:
    run = replace(
        run,
        attempt=run.attempt + 1,
        num_failures=run.num_failures + (charged == "failures"),
        num_preemptions=run.num_preemptions + (charged == "preemptions"),
        num_engine_failures=run.num_engine_failures + (charged == "engine failures"),
        num_engine_failures_in_place=run.num_engine_failures_in_place + (charged == "engine failures"),
    )
    return _restored(run, now)


def _finished(run: Run, ending: Ending, failures: tuple[Failure, ...] = (), reason: str = "") -> Step:
    # No time outlives the driver whose clock it was taken from.
    return replace(run, phase=Finished(ending, failures, reason), last_save_s=None), []
