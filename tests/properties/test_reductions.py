"""What ranks report together, against plain arithmetic: whatever they give, in whatever order they come."""

import math
from fractions import Fraction

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline._control import events
from paceline._control.commands import CommitCheckpoint
from paceline._control.events import DriverStarted, WorkersStopped
from paceline._control.report_aggregator import ReportAggregator, drop_superseded_reports, iter_reports
from paceline._control.run import Restoring, Run, Running, Stopping
from paceline._control.step import step
from paceline._core.checkpoint_records import StagedFiles
from paceline._core.plain_values import from_plain, to_plain
from paceline._core.reductions import ReducedMetric, ReductionMark, reduce_metrics, split_reductions
from paceline._engine.messages import CheckpointStaged, Reported, WorkerFailed, WorkerFailure, WorkerReturned

HOWS = ("mean", "sum", "max", "min")
numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.integers(-5, 5), st.floats(-10, 10))
weights = st.sampled_from([None, 0, 1, 2, 7, 0.5])
names = st.lists(st.sampled_from(["loss", "eval", "n", "a/b", "$"]), min_size=1, max_size=3).map(tuple)


def together(how, values, weights):
    """By fractions, which are exact; where something is not finite, by what floats make of it."""
    if how != "mean":
        weights = [1] * len(values)
    pairs = [(value, 1 if weight is None else weight) for value, weight in zip(values, weights, strict=True)]
    pairs = [(value, weight) for value, weight in pairs if weight]
    if not pairs or any(value != value for value, _ in pairs):
        return math.nan
    if how in ("max", "min"):
        return {"max": max, "min": min}[how](values)
    infinite = {value for value, _ in pairs if isinstance(value, float) and math.isinf(value)}
    if infinite:
        return infinite.pop() if len(infinite) == 1 else math.nan
    exact = sum(Fraction(value) * Fraction(weight) for value, weight in pairs)
    if how == "sum" and all(isinstance(value, int) for value in values):
        return int(exact)
    if how == "mean":
        exact /= sum(Fraction(weight) for _, weight in pairs)
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def close(one, other):
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return one == other or (one != one and other != other) or math.isclose(one, other, rel_tol=1e-12)


@settings(max_examples=500, deadline=None)
@given(how=st.sampled_from(HOWS), pairs=st.lists(st.tuples(numbers, weights), min_size=1))
@example("sum", [(1e16, 1), (1.0, 1), (-1e16, 1), (1.0, 1)])
@example("mean", [(1e16, 1), (1.0, 1), (-1e16, 1), (1.0, 1)])
@example("mean", [(1.7e308, 1), (1.7e308, 1)])
@example("mean", [(2.0, 3), (math.nan, 0)])
@example("mean", [(1, None), (4, 2)])
@example("sum", [(10**400, 1), (0.5, 1)])
@example("mean", [(-(10**400), 1), (0.5, 1)])
def test_a_reduction_is_what_arithmetic_says(how, pairs):
    reports = [({"x": value}, (ReductionMark(("x",), how, weight),)) for value, weight in pairs]
    reduced = reduce_metrics(reports)["x"]
    assert close(reduced, together(how, *zip(*pairs, strict=True)))
    if how in ("sum", "max", "min"):
        assert close(reduce_metrics(reports[::-1])["x"], reduced), "not even the order of ranks matters"


metrics = st.recursive(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.one_of(st.integers(0, 9), st.none()), max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=6,
)


@given(base=metrics, path=names, how=st.sampled_from(HOWS), value=st.integers(-5, 5))
def test_a_mark_anywhere_is_split_off_and_its_reduction_put_back_there(base, path, how, value):
    marked, own = put(base, path, ReducedMetric(how, value)), put(base, path, value)
    metrics, marks = split_reductions(marked)
    assert metrics == own
    assert marks == (ReductionMark(path, how),)
    reduced = reduce_metrics([(own, marks), (put({}, path, value + 1), marks)])
    expected = {"mean": value + 0.5, "sum": 2 * value + 1, "max": value + 1, "min": value}[how]
    assert reduced == put(base, path, expected)
    assert own == put(base, path, value), "what was given is left as it was"


def put(tree, path, value):
    key, *rest = path
    below = tree.get(key)
    return {**tree, key: put(below if isinstance(below, dict) else {}, rest, value) if rest else value}


@pytest.mark.parametrize("value", ["0.5", None, [1.0], {"a": 1}, object()])
def test_a_marked_value_that_is_no_number_is_refused(value):
    with pytest.raises(TypeError, match=r"train\.mean\(.*number"):
        ReducedMetric("mean", value)
    with pytest.raises(TypeError, match=r"metrics\['x'\] has train.mean\(1\) in a list"):
        split_reductions({"x": [{"y": ReducedMetric("mean", 1)}]})


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, 2**64])
def test_a_weight_is_a_finite_number_of_0_or_more(weight):
    with pytest.raises(ValueError, match=r"weight must be a non-negative finite number, got "):
        ReducedMetric("mean", 1.0, weight)


# The reports of ranks in any order, against a model that has them all in a table


class World:
    """A run that hears reports in an order that is drawn, loses workers and drivers, and changes its size."""

    def __init__(self, draw):
        self.draw = draw
        self.run = Run()
        self.journal = []
        self.committed = []
        self.gathering = ReportAggregator()
        self.reports = []
        self.table = {}
        """What each rank has reported, by attempt and number."""

    def hear(self, event):
        after, commands = step(self.run, event)
        if after is self.run and not commands:
            return
        self.run = after
        self.journal.append(events.encode_event(event))
        self.reports += self.gathering.add_event(event, after)
        attempt = self.gathering._attempt
        kept = [*attempt._counts, *attempt._rank_reports]
        assert all(seq > attempt._passed for seq in kept), "nothing is kept of a report that was passed on"
        for command in commands:
            if isinstance(command, CommitCheckpoint):
                record = command.record
                self.committed.append((record.attempt, record.seq, from_plain(msgspec.json.decode(record.metrics))))
                self.hear(events.Committed(record))
        if isinstance(self.run.phase, Restoring):
            self.hear(events.CheckpointVerified(self.run.attempt, self.run.latest.seq))

    def attempt(self, num_reports, *, ends_early):
        draw, run = self.draw, self.run
        size, number, first = run.size, run.attempt, run.num_reports
        totals = [num_reports] * size
        if draw(st.booleans(), "ranks differ in how often they report"):
            totals = [draw(st.integers(0, num_reports), "reports") for _ in range(size)]
        saves = {first + 1 + at for at in range(min(totals, default=0)) if draw(st.integers(0, 3), "saves") == 0}
        marked = {
            first + 1 + at: draw(st.sampled_from([(), ("x",), ("x", "n"), ("deep",)]), "marks")
            for at in range(num_reports)
        }
        left = dict.fromkeys(range(size), 0)
        while left:
            rank = draw(st.sampled_from(sorted(left)), "rank")
            if ends_early and draw(st.integers(0, 15), "dies") == 0:
                self.hear(WorkerFailed(number, rank, WorkerFailure(rank, "killed", "killed by SIGKILL")))
                self.hear(WorkersStopped(number))
                return
            if left[rank] == totals[rank]:
                del left[rank]
                self.hear(WorkerReturned(number, rank, first + totals[rank]))
                continue
            left[rank] += 1
            seq = first + left[rank]
            self._report(number, rank, seq, marked[seq], seq in saves)
        self.hear(WorkersStopped(number))

    def _report(self, number, rank, seq, names, saves):
        own = {"rank": rank, "seq": seq, "deep": {"y": rank}}
        marks = []
        for name in names:
            if self.draw(st.integers(0, 5), "leaves one out") == 0:
                continue
            path, how = {"x": (("x",), "mean"), "n": (("n",), "sum"), "deep": (("deep", "worst"), "max")}[name]
            value = self.draw(st.sampled_from([0.5, 1, -3, math.nan, 2**65]), "value")
            own = put(own, path, value)
            marks.append(ReductionMark(path, how, 2 if how == "mean" and rank % 2 else None))
        name = f"checkpoint_{seq:06d}" if saves else None
        raw = msgspec.Raw(msgspec.json.encode(to_plain(own)))
        event = Reported(number, rank, seq, raw, 0.0, "train.py:1", name, reduce=tuple(marks))
        self.table.setdefault((number, seq), {})[rank] = event
        self.hear(event)
        if saves:
            self.hear(CheckpointStaged(number, seq, StagedFiles(rank, ())))

    def expected(self, attempt, seq):
        events = self.table[attempt, seq]
        own = {rank: from_plain(msgspec.json.decode(event.metrics)) for rank, event in events.items()}
        metrics = own[0]
        if not events[0].reduce:
            return metrics
        for path in {mark.path for event in events.values() for mark in event.reduce}:
            how = {"x": "mean", "n": "sum", "deep": "max"}[path[0]]
            values, weights = [], []
            for rank in sorted(events):
                for mark in events[rank].reduce:
                    if mark.path == path:
                        values.append(own[rank][path[0]] if len(path) == 1 else own[rank][path[0]][path[1]])
                        weights.append(mark.weight or 1)
            metrics = put(metrics, path, together(how, values, weights))
        return metrics


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return close(one, other)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_reports_in_any_order_come_to_what_a_table_of_them_says(data):
    world = World(lambda strategy, label: data.draw(strategy, label))
    size = data.draw(st.integers(1, 4), "size")
    for life in range(data.draw(st.integers(1, 3), "drivers")):
        if world.run.is_trained:
            break
        size = size if life == 0 else data.draw(st.integers(1, 4), "size")
        world.hear(DriverStarted(size, 1))
        while isinstance(world.run.phase, Running):
            world.attempt(data.draw(st.integers(0, 6), "reports"), ends_early=True)
            if data.draw(st.booleans(), "the driver is lost"):
                break
    world.reports += world.gathering.flush()

    assert all(same(metrics, world.expected(attempt, seq)) for attempt, seq, metrics in world.committed)
    counting = drop_superseded_reports(world.reports)
    seqs = [report.seq for report in counting]
    assert seqs == sorted(set(seqs)), "each number once, in order"
    assert all(same(report.metrics, world.expected(report.attempt, report.seq)) for report in counting)

    journal = [events.decode_event(line) for line in world.journal]
    read = drop_superseded_reports(iter_reports(journal))
    assert [(r.attempt, r.seq) for r in read] == [(r.attempt, r.seq) for r in counting], "a reader finds the same"
    assert all(same(one.metrics, other.metrics) for one, other in zip(read, counting, strict=True))
    replayed = Run()
    for event in journal:
        replayed, _ = step(replayed, event)
    assert replayed == world.run, "and so does the next driver"
    live = world.run.phase.running if isinstance(world.run.phase, Stopping) else world.run.phase
    if isinstance(live, Running):
        assert all(seq > live.progress.minimum for seq in live.reducing), "nothing is kept that all ranks have made"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "the other way"])
def test_ranks_that_reduce_one_metric_in_different_ways_fail_with_both_call_sites(order):
    raw = msgspec.Raw(b'{"x":1}')
    reports = [
        Reported(1, 0, 1, raw, 0.0, "train.py:7", reduce=(ReductionMark(("x",), "mean"),)),
        Reported(1, 1, 1, raw, 0.0, "train.py:8", reduce=(ReductionMark(("y",), "min"), ReductionMark(("x",), "sum"))),
    ]
    run, _ = step(Run(), DriverStarted(2, 5))
    for at in order:
        run, _ = step(run, reports[at])
    run, _ = step(run, WorkersStopped(1))
    assert run.phase.ending == "failed", "and it is not tried again"
    (failure,) = run.phase.failures
    assert failure.message.startswith(
        "ReportMismatchError: in report 1, rank 0 reduces 'x' by train.mean, at train.py:7, and rank 1 by train.sum, at"
    )
