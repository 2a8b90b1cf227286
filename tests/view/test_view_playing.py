"""What is shown of a run is what a driver would find: the same journals, played by both."""

import math
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._control import events
from paceline._control.events import (
    CheckpointStaged,
    DriverStarted,
    Measured,
    Reported,
    TimeTold,
    WorkerReady,
    WorkerReturned,
    WorkersStopped,
)
from paceline._control.gathering import Gathering, reports_of, that_count
from paceline._control.recover import Replay
from paceline._control.run import Running, Stopping
from paceline._core.codec import sealed
from paceline._core.cursor import Cursor
from paceline._core.plain import plain
from paceline._core.reductions import Mark
from paceline._engine.messages import RankUse, Staged
from paceline._view.decoding import decoded
from paceline._view.playing import Play
from paceline._view.reports import OWN
from paceline.train.result import flat
from properties import test_reductions, test_step


def played(lines: Sequence[bytes], cuts: Iterable[int] = ()) -> Play:
    """Played in pieces, as a reader comes upon them."""
    play = Play("here")
    edges = [0, *sorted(cuts), len(lines)]
    for first, end in pairwise(edges):
        data = b"".join(map(sealed, lines[first:end]))
        found = decoded(data, play.reports.columns)
        assert found.num_bytes == len(data)
        play.take(found)
        if random.random() < 0.3:
            play.run  # noqa: B018  whoever looks at it in between changes nothing
    assert play.problem is None
    return play


def replayed(lines: Sequence[bytes]) -> Replay:
    replay = Replay()
    for line in lines:
        replay.hear(events.decode(line))
    return replay


def rows_of(play: Play) -> list[dict[str, object]]:
    return [*play.reports.between(0, len(play.reports))]


def expected_rows(lines: Sequence[bytes]) -> list[dict[str, object]]:
    rows = []
    for report in that_count(reports_of(map(events.decode, lines))):
        own = {f"reported/{name}" if name in OWN else name: value for name, value in flat(report.metrics).items()}
        rows.append({"step": report.seq, "time": report.at, "attempt": report.attempt, **own})
    return rows


def same(a: object, b: object) -> bool:
    """Numbers as numbers, and nan as nan."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def close(a: object, b: object) -> bool:
    """The same but for integers that no float has exactly."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, int | float) and isinstance(b, int | float) and not isinstance(a, bool):
        return same(as_float(a), as_float(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    return same(a, b)


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
                lines.append(events.encode(TimeTold(heard_at)))
                lines.append(events.encode(Measured(1, heard_at, (RankUse(0),))))
        cuts = [random.randrange(len(lines) + 1) for _ in range(3)]
        replay, play = replayed(lines), played(lines, cuts)
        assert play.run == replay.run
        assert play.replay.lease == replay.lease
        assert [c.record for c in play.replay.unanswered()] == [c.record for c in replay.unanswered()]
        play.gather_rest()
        assert close(rows_of(play), expected_rows(lines))
        assert [chapter.number for chapter in play.story.chapters][-1:] == [play.run.attempt]


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
    play = played(lines, [data.draw(st.integers(0, len(lines)), "cut")])
    assert [(row["attempt"], row["step"]) for row in rows_of(play)] == ready(lines)
    assert play.run == replayed(lines).run
    play.gather_rest()
    assert close(rows_of(play), expected_rows(lines))


def test_ranks_that_reduce_differently_are_noticed_though_reports_are_held() -> None:
    lines = [events.encode(e) for e in (DriverStarted(2, 0), *(WorkerReady(1, rank, 7) for rank in range(2)))]
    raw = msgspec.Raw(b'{"m":1}')
    for seq in range(1, 30):
        hows = ("sum", "sum") if seq != 17 else ("sum", "max")
        lines += [
            events.encode(Reported(1, rank, seq, raw, 0.0, "", reduce=(Mark(("m",), hows[rank]),))) for rank in (0, 1)
        ]
    play = played(lines)
    assert play.run == replayed(lines).run
    assert isinstance(play.run.phase, Stopping)
    (chapter,) = play.story.chapters
    assert "rank 1 by train.max" in chapter.failures[0].message


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
            marks: tuple[Mark, ...] = ()
            if reduced and draw(st.booleans()):
                own["m"] = draw(st.integers(-5, 5))
                marks = (Mark(("m",), "sum"),)
            raw = msgspec.Raw(msgspec.json.encode(plain(own)))
            lines.append(Reported(attempt, rank, counts[rank], raw, draw(st.floats(0, 9)), "a.py:1", reduce=marks))
        if draw(st.booleans()):
            lines += [WorkerReturned(attempt, rank, counts[rank], stopped=True) for rank in range(size)]
    return [events.encode(line) for line in lines]


@given(lines=journals(), cuts=st.lists(st.integers(0, 30), max_size=3))
@settings(max_examples=70, deadline=None)
def test_reports_of_all_kinds_are_the_rows_that_a_result_has(lines: list[bytes], cuts: list[int]) -> None:
    play = played(lines, [min(cut, len(lines)) for cut in cuts])
    assert [(row["attempt"], row["step"]) for row in rows_of(play)] == ready(lines)
    play.gather_rest()
    assert play.run == replayed(lines).run
    found, expected = rows_of(play), expected_rows(lines)
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        assert close(row, wanted), (row, wanted)


def ready(lines: Sequence[bytes]) -> list[tuple[int, int]]:
    """The reports that no rank is waited for in any more."""
    replay, gathering, found = Replay(), Gathering(), []
    for line in lines:
        event = events.decode(line)
        if replay.hear(event):
            found += gathering.hear(event, replay.run)
    return [(report.attempt, report.seq) for report in that_count(found)]


def test_a_report_that_a_checkpoint_waits_for_is_not_left_out_however_long_ago_it_was() -> None:
    lines = [events.encode(e) for e in (DriverStarted(2, 0), WorkerReady(1, 0, 7), WorkerReady(1, 1, 7))]
    lines.append(events.encode(Reported(1, 1, 3, msgspec.Raw(b'{"of":1}'), 0.0, "", checkpoint="checkpoint_000003")))
    for seq in range(1, 500):
        lines.append(events.encode(Reported(1, 0, seq, msgspec.Raw(b'{"of":0,"n":%d}' % seq), 0.0, "")))
    play = played(lines)
    assert play.run == replayed(lines).run
    assert bytes(play.run.phase.pending[0].metrics) == b'{"of":0,"n":3}'


def many(num_reports: int, size: int = 1, metrics: bytes = b'{"loss":0.5,"n":%d}') -> list[bytes]:
    """A journal that is long enough to be decoded with the names of its metrics known."""
    lines: list[events.Event] = [DriverStarted(size, 0, at=1.0), *(WorkerReady(1, rank, 7) for rank in range(size))]
    for seq in range(1, num_reports + 1):
        raw = msgspec.Raw(metrics % seq if b"%d" in metrics else metrics)
        lines += [Reported(1, rank, seq, raw, 1.0 + seq, "train.py:41") for rank in range(size)]
    lines += [*(WorkerReturned(1, rank, num_reports) for rank in range(size)), WorkersStopped(1)]
    return [events.encode(line) for line in lines]


def test_a_long_journal_gives_the_same_as_a_short_one() -> None:
    lines = many(2000, size=2)
    assert decoded(b"".join(map(sealed, lines))).names == ("loss", "n")
    play = played(lines, [1500])
    assert play.run == replayed(lines).run
    assert rows_of(play) == expected_rows(lines)


def test_a_metric_that_comes_late_or_is_no_number_is_kept_in_a_long_journal() -> None:
    lines = many(3000)
    odd = Reported(1, 0, 1500, msgspec.Raw(b'{"loss":{"$number":"nan"},"acc":1.5,"who":"x"}'), 1501.0, "train.py:41")
    lines[2 + 1499] = events.encode(odd)
    play = played(lines, [1000, 2500])
    assert play.run == replayed(lines).run
    assert same(rows_of(play), expected_rows(lines))
    assert same(
        rows_of(play)[1499], {"step": 1500, "time": 1501.0, "attempt": 1, "loss": math.nan, "acc": 1.5, "who": "x"}
    )


def test_ranks_that_reported_or_returned_before_the_first_mark_are_not_waited_for() -> None:
    raw = msgspec.Raw(b'{"m":1}')
    lines = [events.encode(e) for e in (DriverStarted(3, 0), *(WorkerReady(1, rank, 7) for rank in range(3)))]
    lines += [events.encode(Reported(1, 1, 1, raw, 0.0, "")), events.encode(WorkerReturned(1, 2, 0))]
    lines.append(events.encode(Reported(1, 0, 1, raw, 0.0, "", reduce=(Mark(("m",), "sum"),))))
    assert ready(lines) == [(1, 1)]
    assert [row["m"] for row in rows_of(played(lines))] == [1]


def test_a_checkpoint_that_waits_for_a_reduced_report_gets_what_all_ranks_made_of_it() -> None:
    raw, marks = msgspec.Raw(b'{"m":1}'), (Mark(("m",), "sum"),)
    lines = [events.encode(e) for e in (DriverStarted(2, 0), *(WorkerReady(1, rank, 7) for rank in range(2)))]
    lines += [events.encode(Reported(1, 1, seq, raw, 0.0, "", reduce=marks)) for seq in (1, 2)]
    lines.append(events.encode(Reported(1, 1, 3, raw, 0.0, "", checkpoint="checkpoint_000003", reduce=marks)))
    lines += [events.encode(Reported(1, 0, seq, raw, 0.0, "", reduce=marks)) for seq in range(1, 9)]
    lines += [events.encode(Reported(1, 1, seq, raw, 0.0, "", reduce=marks)) for seq in range(4, 9)]
    play = played(lines)
    assert play.run == replayed(lines).run
    assert isinstance(play.run.phase, Running)
    assert bytes(play.run.phase.pending[0].metrics) == b'{"m":2}'


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
    told: list[events.Event] = [DriverStarted(size, 0), *(WorkerReady(1, rank, 7) for rank in range(size))]
    counts, unstaged = [0] * size, []
    for number, what in order:
        rank = number % size
        if what == 7 and unstaged:
            seq, of = unstaged.pop(0)
            told.append(CheckpointStaged(1, seq, Staged(of, ())))
            continue
        counts[rank] += 1
        seq = counts[rank]
        name = f"checkpoint_{seq:06d}" if what == 0 or seq % 5 == 0 else None
        data = (("train", Cursor(row=10 * seq + rank)),) if what != 1 else ()
        marks = (Mark(("m",), "sum"),) if reduces and what % 2 else ()
        raw = msgspec.Raw(b'{"m":%d}' % seq)
        told.append(Reported(1, rank, seq, raw, 0.0, "", checkpoint=name, data=data, reduce=marks))
        if name is not None:
            unstaged.append((seq, rank))
    lines = [events.encode(event) for event in told]
    play = played(lines, [min(cut, len(lines)) for cut in cuts])
    replay = replayed(lines)
    assert play.run == replay.run
    assert [c.record for c in play.replay.unanswered()] == [c.record for c in replay.unanswered()]
