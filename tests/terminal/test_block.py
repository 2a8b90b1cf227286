"""A run as a block of lines and as one line, from what happened in it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sample_run import RunEvents

from paceline._control.run import Run
from paceline._view.formatting import display_width
from paceline._view.history import build_attempt
from paceline._view.model import Attempt, RunSnapshot, Summary, TimeBreakdown, Worker
from paceline._view.projection import RunProjection
from paceline._view.run_values import to_json_values
from paceline.train.display.live_run import MAX_TRACE, LiveRun
from paceline.train.display.run_block import compute_time_shares, format_progress_line, render_block
from paceline.train.display.styled_lines import to_html, to_plain_text

GOLDEN = Path(__file__).parent / "golden"


def live_run_and_events(config=None, **events):
    live = LiveRun("resnet", config, began_at=1000.0)
    return live, RunEvents(live.add_event, **events)


def block(live, events, width, height=24):
    snapshot = live.take_snapshot(events.run, events.at)
    return [to_plain_text(line) for line in render_block(snapshot, live.traces, events.at, width, height)]


def progress_line(live, events):
    return format_progress_line(live.take_snapshot(events.run, events.at), events.at)


def two_minutes(size=2, gpus=1):
    """A run that has come half way, and stands now."""
    live, events = live_run_and_events({"num_epochs": 24}, size=size)
    events.at += 5
    events.ready()
    for epoch in range(12):
        events.at += 10
        events.reported(epoch + 1, epoch=epoch, loss=1 / (epoch + 1), eval={"accuracy": epoch / 12})
        live.take_snapshot(events.run, events.at)
    events.committed(12, 1_400_000_000)
    events.measured(110.0, setup_s=4.0, data_s=20.0, report_s=1.0, checkpoint_s=5.0, gpus=gpus)
    events.at += 10
    events.measured(120.0, setup_s=4.0, data_s=25.0, report_s=1.0, checkpoint_s=5.0, gpus=gpus)
    return live, events


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_run_half_way_through(width):
    live, events = two_minutes()
    lines = block(live, events, width)
    assert max(map(display_width, lines)) <= width
    assert "".join(f"{line}\n" for line in lines) == (GOLDEN / f"block_{width}.txt").read_text()
    assert progress_line(live, events) == (
        "report 12 after 2:15, 10 s an epoch, 50 %, 1:50 left: epoch=11, loss=0.08333, "
        "eval/accuracy=0.9167; checkpoint_000012 10 s ago; "
        "data 18 %, compute 63 %, report 1 %, checkpoint 4 %, starting 14 %"
    )


def test_before_anything_is_reported_it_says_what_it_waits_for():
    live, events = live_run_and_events()
    events.at += 30
    assert progress_line(live, events) == "no report yet after 30 s, starting"
    events.ready(0)
    first, *workers = block(live, events, 80)
    assert (first, workers) == ("run resnet  starting  30 s", ["  rank  state", "     0  running", "     1  starting"])


def test_of_many_workers_those_in_trouble_are_shown_and_the_others_summed_up():
    live, events = two_minutes(size=64)
    events.hangs(40, "rank 40 has been stuck at train.py:41 for 45 s")
    lines = block(live, events, 100)
    assert len(lines) < 24
    assert "  hang  rank 40 has been stuck at train.py:41 for 45 s" in lines
    assert any(line.startswith("    40  hangs    cuda:0   41 GB  30 GB of 80 GB") for line in lines)
    assert lines[-1] == "  and 56 more workers: 56 running, 8.0 GB to 64 GB each"
    events.moves(40)
    events.measured(125.0, gpus=1, stages=[events.limited("map(decode)")])
    lines = block(live, events, 120)
    assert not any("hang" in line for line in lines)
    assert "waits for map(decode)" in "\n".join(lines)


def test_an_attempt_that_fails_is_shown_until_the_next_and_the_time_between_them_counts():
    live, events = live_run_and_events(max_failures=1)
    events.at += 2
    events.ready()
    events.at += 8
    events.measured(9.0, setup_s=1.0)
    events.reported(1, loss=1.0)
    events.failed(1)
    snapshot = live.take_snapshot(events.run, events.at)
    assert [(worker.rank, worker.state, worker.failure) for worker in snapshot.attempts[-1].workers] == [
        (0, "running", None),
        (1, "failed", "ValueError: shapes do not fit"),
    ]
    events.at += 10
    events.stopped()
    events.ready()
    events.at += 20
    events.measured(20.0)
    snapshot = live.take_snapshot(events.run, events.at)
    assert block(live, events, 80)[0] == "run resnet  attempt 2  running  40 s"
    assert snapshot.spent == TimeBreakdown(wall_s=40.0, starting_s=2.0, compute_s=28.0, between_s=10.0)


def test_a_driver_that_forgets_the_past_shows_the_same_time_as_the_journal_does():
    projection, runs = RunProjection(), [Run()]

    def observe(event, run, at):
        projection.add_event(event, runs[-1], run, at)
        runs.append(run)

    live = LiveRun("resnet", None, began_at=1000.0)
    events = RunEvents(live.add_event, observe, max_failures=1)
    for attempt in (1, 2):
        events.at += 2
        events.ready()
        events.at += 8
        events.measured(9.0, setup_s=1.0, data_s=float(attempt))
        events.reported(1, loss=1.0)
        if attempt == 1:
            events.failed(1)
            events.at += 1
            events.stopped()
    snapshot = live.take_snapshot(events.run, events.at)
    whole = projection.take_snapshot(snapshot.summary, events.at)
    assert snapshot.spent == whole.spent
    assert snapshot.attempts == (build_attempt(projection.history.attempts[-1]),)
    assert snapshot.summary.num_failures == 1
    forgotten = live._projection.history
    assert [len(attempt.workers) for attempt in forgotten.attempts] == [1, 2]
    assert (len(forgotten.timeline), len(projection.history.timeline)) == (0, 4)


def test_output_of_a_run_is_never_markup_and_never_an_escape_code():
    name = "<script>\x1b[2J</script>"
    live, events = live_run_and_events()
    events.ready()
    events.reported(1, **{name: "\x1b]0;title\x07", "b": 1.0})
    events.hangs(0, f"rank 0 stands in {name}")
    snapshot = live.take_snapshot(events.run, events.at)
    snapshot = replace(snapshot, summary=replace(snapshot.summary, name=name), limited_by=name)
    lines = render_block(snapshot, live.traces, events.at, 60, 24)
    assert "\x1b" not in "".join(map(to_plain_text, lines)) + format_progress_line(snapshot, events.at)
    html = to_html(lines)
    assert "<script>" not in html
    assert "&lt;script&gt;\\x1b[2J&lt;/script&gt;" in html


def test_reports_that_come_too_fast_to_be_read_leave_the_last_values():
    live, events = live_run_and_events({"max_steps": 20_000})
    events.ready()
    for seq in range(1, 10_001):
        events.at += 0.001
        events.reported(seq, step=seq, loss=float(seq))
        if seq % 1000 == 0:
            live.take_snapshot(events.run, events.at)
    snapshot = live.take_snapshot(events.run, events.at)
    assert snapshot.summary.metrics["loss"] == 10_000.0
    assert [*live.traces["loss"]] == [float(seq) for seq in range(1000, 10_001, 1000)]
    assert snapshot.pace.steps_per_s == pytest.approx(1000, rel=0.02)
    assert len(live.traces["loss"]) <= MAX_TRACE
    for seq in range(10_001, 10_500):  # A metric that changes its name each time does not fill the memory either.
        events.reported(seq, **{f"loss_{seq}": 1.0})
        live.take_snapshot(events.run, events.at)
    assert len(live.traces) <= MAX_TRACE


@given(st.lists(st.floats(0, 1e9), min_size=6, max_size=6))
def test_shares_of_the_time_sum_to_all_of_it(amounts):
    names = ("data_s", "compute_s", "report_s", "checkpoint_s", "starting_s", "between_s")
    shares = compute_time_shares(TimeBreakdown(**dict(zip(names, amounts, strict=True))))
    assert sum(share for _, share in shares) == (100 if sum(amounts) > 0 else 0)
    assert all(share >= 0 for _, share in shares)


words_of_users = st.sampled_from(["loss", "数学", "a" * 70, "é\u0301", "\x1b[31m", "a b", "x/y/z", "🚀" * 20, "\u202e"])
anything = st.one_of(words_of_users, st.floats(), st.integers(), st.none(), st.booleans(), st.just(10**400))


@given(
    st.dictionaries(words_of_users, anything, max_size=6),
    st.integers(0, 12),
    st.sampled_from(["running", "failed", "hangs", "starting", "gone", "returned"]),
    st.integers(1, 250),
    st.integers(1, 60),
    words_of_users,
)
def test_whatever_is_shown_it_fits(metrics, num_workers, state, width, height, text):
    workers = tuple(
        Worker(rank=rank, state=state, device=text, host=f"{text}{rank}", rss_bytes=10**rank, cpu=0.5, failure=text)
        for rank in range(num_workers)
    )
    fixed = {"id": ".", "path": "", "kind": "run", "state": "running", "began_at": 0.0, "updated_at": 0.0}
    fixed |= {"attempt": 2, "num_reports": 10**9}
    summary = Summary(name=text, metrics=to_json_values(metrics), hang=text * 9, **fixed)
    attempt = Attempt(number=2, began_at=0.0, size=num_workers, workers=workers)
    spent = TimeBreakdown(wall_s=1.0, compute_s=1.0)
    snapshot = RunSnapshot(summary=summary, attempts=(attempt,), spent=spent)
    lines = render_block(snapshot, dict.fromkeys(metrics, (1.0, None, 2.0)), 4e5, width, height)
    assert all(display_width(to_plain_text(line)) <= max(width, 20) for line in lines)
    if width >= 40:
        assert len(lines) <= max(height, 20)
    assert "\x1b" not in "".join(map(to_plain_text, lines)) + format_progress_line(snapshot, 4e5)
