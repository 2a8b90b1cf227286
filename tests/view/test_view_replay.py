"""What is shown of a run is what a driver would find: the same journals, played by both."""

import math
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._control import events
from paceline._control.events import DriverStarted, Reported, WorkerReady, WorkerReturned
from paceline._control.recovery import RunReplay
from paceline._control.report_aggregator import ReportAggregator, drop_superseded_reports, iter_reports
from paceline._control.run import Running, Stopping
from paceline._core.arguments import flatten_dict
from paceline._core.checkpoint_records import StagedFiles
from paceline._core.codec import seal_line
from paceline._core.cursor import Cursor
from paceline._core.plain_values import to_plain
from paceline._core.reductions import ReductionMark
from paceline._engine.messages import RankUsage
from paceline._view.journal.lines import decode_journal_lines
from paceline._view.journal.replay import JournalReplay
from paceline._view.journal.report_table import ROW_FIELDS
from properties import test_reductions, test_step


def replay_lines(lines: Sequence[bytes], cuts: Iterable[int] = ()) -> JournalReplay:
    """Played in pieces, as a reader comes upon them."""
    replay = JournalReplay("here")
    edges = [0, *sorted(cuts), len(lines)]
    for number, (first, end) in enumerate(pairwise(edges)):
        data = b"".join(map(seal_line, lines[first:end]))
        found = decode_journal_lines(data, replay.reports.columns)
        assert found.num_bytes == len(data)
        replay.add_lines(found)
        if number % 2:
            replay.run  # noqa: B018  reading it in between changes nothing
    assert replay.problem is None
    return replay


def replayed(lines: Sequence[bytes]) -> RunReplay:
    replay = RunReplay()
    for line in lines:
        replay.apply_event(events.decode_event(line))
    return replay


def rows_of(replay: JournalReplay) -> list[dict[str, object]]:
    return [*replay.reports.iter_rows(0, len(replay.reports))]


def expected_rows(lines: Sequence[bytes]) -> list[dict[str, object]]:
    rows = []
    for report in drop_superseded_reports(iter_reports(map(events.decode_event, lines))):
        own = {
            f"reported/{name}" if name in ROW_FIELDS else name: value
            for name, value in flatten_dict(report.metrics).items()
        }
        rows.append({"step": report.seq, "time": report.at, "attempt": report.attempt, **own})
    return rows


def close(a: object, b: object) -> bool:
    """Equal but for integers that no float has exactly, and nan equals nan."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float) and not isinstance(a, bool):
        a, b = as_float(a), as_float(b)
        return a == b or (math.isnan(a) and math.isnan(b))
    return a == b


def as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


class PlayedMachine(test_step.RunMachine):
    """Every journal that the tests of `step` come to, with notes strewn in."""

    def teardown(self) -> None:
        super().teardown()
        if not getattr(self, "intact", False):
            return
        lines: list[bytes] = []
        for line, heard_at in self.journal:
            lines.append(line)
            if len(lines) % 5 == 0:
                lines.append(events.encode_event(events.Timestamp(heard_at)))
                lines.append(events.encode_event(events.UsageMeasured(1, heard_at, (RankUsage(0),))))
        cuts = [random.randrange(len(lines) + 1) for _ in range(3)]
        driver, replay = replayed(lines), replay_lines(lines, cuts)
        assert replay.run == driver.run
        assert replay.replay.lease == driver.lease
        assert [c.record for c in replay.replay.unanswered_commits()] == [c.record for c in driver.unanswered_commits()]
        replay.flush_reports()
        assert close(rows_of(replay), expected_rows(lines))
        assert [attempt.number for attempt in replay.projection.history.attempts][-1:] == [replay.run.attempt]


TestPlayed = PlayedMachine.TestCase
TestPlayed.settings = settings(test_step.TestStepDoesWhatTheModelSays.settings, max_examples=25, stateful_step_count=60)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_reduced_reports_in_any_order_give_the_run_that_a_driver_would_find(data: st.DataObject) -> None:
    world = test_reductions.World(lambda strategy, label: data.draw(strategy, label))
    for _ in range(data.draw(st.integers(1, 2), "drivers")):
        if world.run.is_trained:
            break
        world.hear(DriverStarted(data.draw(st.integers(1, 4), "size"), 1))
        while isinstance(world.run.phase, Running):
            world.attempt(data.draw(st.integers(0, 6), "reports"), ends_early=True)
            if data.draw(st.booleans(), "the driver is lost"):
                break
    lines = world.journal[: data.draw(st.integers(1, len(world.journal)), "lines")]
    replay = replay_lines(lines, [data.draw(st.integers(0, len(lines)), "cut")])
    assert [(row["attempt"], row["step"]) for row in rows_of(replay)] == ready(lines)
    assert replay.run == replayed(lines).run
    replay.flush_reports()
    assert close(rows_of(replay), expected_rows(lines))


RAW, SUM = msgspec.Raw(b'{"m":1}'), (ReductionMark(("m",), "sum"),)


def journal_of(size: int, *after: events.Event) -> list[bytes]:
    """The lines of a run whose workers are ready, and of what happens after that."""
    return [
        events.encode_event(e) for e in (DriverStarted(size, 0), *(WorkerReady(1, r, 7) for r in range(size)), *after)
    ]


def test_ranks_that_reduce_differently_are_noticed_though_reports_are_held() -> None:
    marks = {(17, 1): (ReductionMark(("m",), "max"),)}
    reports = [(seq, rank, marks.get((seq, rank), SUM)) for seq in range(1, 30) for rank in (0, 1)]
    lines = journal_of(2, *(Reported(1, rank, seq, RAW, 0.0, "", reduce=reduce) for seq, rank, reduce in reports))
    replay = replay_lines(lines)
    assert replay.run == replayed(lines).run
    assert isinstance(replay.run.phase, Stopping)
    (attempt,) = replay.projection.history.attempts
    assert "rank 1 by train.max" in attempt.failures[0].message


names = st.sampled_from(["loss", "acc", "step", "a/b", "naïve <b>"])
numbers = st.floats() | st.integers(-(1 << 70), 1 << 70)
values = numbers | st.text(max_size=3) | st.booleans() | st.none() | st.lists(st.integers(0, 3), max_size=2)
metrics = st.dictionaries(names, numbers | st.dictionaries(st.sampled_from(["b", "c"]), values, max_size=2) | values)


@st.composite
def journals(draw: st.DrawFn) -> list[bytes]:
    """A few attempts, each from some report on, with metrics of all kinds."""
    size, lines = draw(st.integers(1, 3)), []
    reduced = draw(st.booleans())
    for attempt in range(1, draw(st.integers(1, 3)) + 1):
        lines.append(DriverStarted(size, 0, at=float(attempt)))
        lines += [WorkerReady(attempt, rank, 7) for rank in range(size)]
        counts = [0] * size
        for _ in range(draw(st.integers(0, 12))):
            rank = draw(st.integers(0, size - 1))
            counts[rank] += 1
            own = draw(metrics)
            marks: tuple[ReductionMark, ...] = ()
            if reduced and draw(st.booleans()):
                own["m"] = draw(st.integers(-5, 5))
                marks = SUM
            raw = msgspec.Raw(msgspec.json.encode(to_plain(own)))
            lines.append(Reported(attempt, rank, counts[rank], raw, draw(st.floats(0, 9)), "a.py:1", reduce=marks))
        if draw(st.booleans()):
            lines += [WorkerReturned(attempt, rank, counts[rank], stopped=True) for rank in range(size)]
    return [events.encode_event(line) for line in lines]


@given(lines=journals(), cuts=st.lists(st.integers(0, 30), max_size=3))
@settings(max_examples=70, deadline=None)
def test_reports_of_all_kinds_are_the_rows_that_a_result_has(lines: list[bytes], cuts: list[int]) -> None:
    replay = replay_lines(lines, [min(cut, len(lines)) for cut in cuts])
    assert [(row["attempt"], row["step"]) for row in rows_of(replay)] == ready(lines)
    replay.flush_reports()
    assert replay.run == replayed(lines).run
    found, expected = rows_of(replay), expected_rows(lines)
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        assert close(row, wanted), (row, wanted)


def ready(lines: Sequence[bytes]) -> list[tuple[int, int]]:
    """The reports that no rank is waited for in any more."""
    replay, gathering, found = RunReplay(), ReportAggregator(), []
    for line in lines:
        event = events.decode_event(line)
        if replay.apply_event(event):
            found += gathering.add_event(event, replay.run)
    return [(report.attempt, report.seq) for report in drop_superseded_reports(found)]


def test_a_report_that_a_checkpoint_waits_for_is_not_left_out_however_long_ago_it_was() -> None:
    lines = journal_of(
        2,
        Reported(1, 1, 3, msgspec.Raw(b'{"of":1}'), 0.0, "", checkpoint="checkpoint_000003"),
        *(Reported(1, 0, seq, msgspec.Raw(b'{"of":0,"n":%d}' % seq), 0.0, "") for seq in range(1, 500)),
    )
    replay = replay_lines(lines)
    assert replay.run == replayed(lines).run
    assert bytes(replay.run.phase.pending[0].metrics) == b'{"of":0,"n":3}'


def long_journal(num_reports: int, size: int = 1) -> list[events.Event]:
    """Long enough to be decoded with the names of its metrics known: what follows the workers' being ready."""
    return [
        Reported(1, rank, seq, msgspec.Raw(b'{"loss":0.5,"n":%d}' % seq), 1.0 + seq, "train.py:41")
        for seq in range(1, num_reports + 1)
        for rank in range(size)
    ] + [*(WorkerReturned(1, rank, num_reports) for rank in range(size)), events.WorkersStopped(1)]


def test_a_long_journal_gives_the_same_rows_with_metrics_that_come_late_or_are_no_numbers() -> None:
    lines = journal_of(2, *long_journal(2000, size=2))
    assert decode_journal_lines(b"".join(map(seal_line, lines))).names == ("loss", "n")
    replay = replay_lines(lines, [1500])
    assert replay.run == replayed(lines).run
    assert rows_of(replay) == expected_rows(lines)

    entries = long_journal(3000)
    odd = msgspec.Raw(b'{"loss":{"$number":"nan"},"acc":1.5,"who":"x"}')
    entries[1499] = Reported(1, 0, 1500, odd, 1501.0, "train.py:41")
    lines = journal_of(1, *entries)
    replay = replay_lines(lines, [1000, 2500])
    assert replay.run == replayed(lines).run
    assert close(rows_of(replay), expected_rows(lines))
    row = {"step": 1500, "time": 1501.0, "attempt": 1, "loss": math.nan, "acc": 1.5, "who": "x"}
    assert close(rows_of(replay)[1499], row)


def test_ranks_that_reported_or_returned_before_the_first_mark_are_not_waited_for() -> None:
    lines = journal_of(
        3, Reported(1, 1, 1, RAW, 0.0, ""), WorkerReturned(1, 2, 0), Reported(1, 0, 1, RAW, 0.0, "", reduce=SUM)
    )
    assert ready(lines) == [(1, 1)]
    assert [row["m"] for row in rows_of(replay_lines(lines))] == [1]


def test_a_checkpoint_that_waits_for_a_reduced_report_gets_what_all_ranks_made_of_it() -> None:
    def report(rank: int, seq: int, **more: str) -> Reported:
        return Reported(1, rank, seq, RAW, 0.0, "", reduce=SUM, **more)

    lines = journal_of(
        2,
        *(report(1, seq) for seq in (1, 2)),
        report(1, 3, checkpoint="checkpoint_000003"),
        *(report(0, seq) for seq in range(1, 9)),
        *(report(1, seq) for seq in range(4, 9)),
    )
    replay = replay_lines(lines)
    assert replay.run == replayed(lines).run
    assert isinstance(replay.run.phase, Running)
    assert bytes(replay.run.phase.pending[0].metrics) == b'{"m":2}'


@given(
    size=st.integers(1, 4),
    order=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=60),
    reduces=st.booleans(),
    cuts=st.lists(st.integers(0, 80), max_size=3),
)
@settings(max_examples=120, deadline=None)
def test_reports_that_say_where_datasets_stand_leave_the_positions_that_still_matter(
    size: int, order: list[tuple[int, int]], reduces: bool, cuts: list[int]
) -> None:
    """Ranks report in any order; some reports of some ranks bring a checkpoint, whose files are staged at some time."""
    entries: list[events.Event] = []
    counts, unstaged = [0] * size, []
    for number, what in order:
        rank = number % size
        if what == 7 and unstaged:
            seq, of = unstaged.pop(0)
            entries.append(events.CheckpointStaged(1, seq, StagedFiles(of, ())))
            continue
        counts[rank] += 1
        seq = counts[rank]
        name = f"checkpoint_{seq:06d}" if what == 0 or seq % 5 == 0 else None
        data = (("train", Cursor(row=10 * seq + rank)),) if what != 1 else ()
        marks = SUM if reduces and what % 2 else ()
        raw = msgspec.Raw(b'{"m":%d}' % seq)
        entries.append(Reported(1, rank, seq, raw, 0.0, "", checkpoint=name, data=data, reduce=marks))
        if name is not None:
            unstaged.append((seq, rank))
    lines = journal_of(size, *entries)
    replay = replay_lines(lines, [min(cut, len(lines)) for cut in cuts])
    driver = replayed(lines)
    assert replay.run == driver.run
    assert [c.record for c in replay.replay.unanswered_commits()] == [c.record for c in driver.unanswered_commits()]
