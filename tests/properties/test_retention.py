"""Which checkpoints stay, for any scores and any number to keep."""

from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.plain_values import from_plain, to_plain
from paceline._storage.commit import rank_checkpoints, select_kept

ABSENT = "absent"

scores = st.one_of(st.integers(-3, 3), st.floats(), st.sampled_from([10**400, -(10**400), None, True, "x", [], ABSENT]))


def record(seq, score):
    metrics = {} if score == ABSENT else {"eval": {"score": score}}
    return CheckpointRecord(seq, f"checkpoint_{seq:06d}", 1, msgspec.Raw(msgspec.json.encode(to_plain(metrics))))


@st.composite
def runs(draw):
    seqs = draw(st.lists(st.integers(1, 50), unique=True, max_size=9))
    return [record(seq, draw(scores)) for seq in sorted(seqs)]


orders = st.sampled_from(["max", "min"])


def read_score(one):
    score = from_plain(msgspec.json.decode(one.metrics)).get("eval", {}).get("score")
    return score if type(score) in (int, float) and score == score else None


def is_better(one, other, order):
    left, right = read_score(one), read_score(other)
    if left is None or right is None:
        return right is None and (left is not None or one.seq > other.seq)
    if left == right:
        return one.seq > other.seq
    return left > right if order == "max" else left < right


@settings(max_examples=200, deadline=None)
@given(runs(), st.integers(1, 6), orders)
def test_the_best_stay_and_the_newest_always(records, number, order):
    stays = select_kept(records, number, "eval/score", order)
    if not records:
        assert stays == ()
        return
    newest = records[-1]
    gone = [other for other in records if other not in stays]
    assert newest in stays
    assert len(stays) in (min(number, len(records)), min(number + 1, len(records)))
    for one in stays:
        beaten_by = [other for other in gone if is_better(other, one, order)]
        assert one == newest or not beaten_by
    if len(stays) > number:
        assert all(is_better(one, newest, order) for one in stays if one != newest)


@given(runs(), st.one_of(st.none(), st.integers(1, 6)), st.sampled_from([None, "eval/score"]), orders)
def test_kept_checkpoints_keep_their_order_and_choosing_again_changes_nothing(records, number, attribute, order):
    stays = select_kept(records, number, attribute, order)
    assert list(stays) == [one for one in records if one in stays]
    assert select_kept(stays, number, attribute, order) == stays


@given(runs(), st.integers(1, 6))
def test_without_a_score_the_newest_stay_and_without_a_number_all(records, number):
    assert select_kept(records, number) == tuple(records[-number:])
    assert select_kept(records, None, "eval/score") == tuple(records)


@given(runs(), st.integers(1, 6), orders, st.sets(st.integers(0, 8)))
def test_those_whose_score_is_to_come_stay_beside_those_that_would_have_stayed(records, number, order, waiting):
    statuses = {True: "PENDING_VALIDATION", False: "VALIDATED"}
    marked = [msgspec.structs.replace(one, status=statuses[one.seq in waiting]) for one in records]
    stays = {one.seq for one in select_kept(marked, number, "eval/score", order)}
    pending = {one.seq for one in marked if one.seq in waiting}
    assert stays == {one.seq for one in select_kept(records, number, "eval/score", order)} | pending


@given(runs(), orders)
def test_ranking_goes_from_worst_to_best(records, order):
    standing = rank_checkpoints(records, "eval/score", order)
    assert sorted(one.seq for one in standing) == [one.seq for one in records]
    for worse, better in pairwise(standing):
        assert is_better(better, worse, order)


def test_an_integer_above_every_float_is_compared_exactly():
    records = [record(1, 10**400), record(2, 10**400 + 1), record(3, 1e308), record(4, 0)]
    assert [one.seq for one in rank_checkpoints(records, "eval/score", "max")] == [4, 3, 1, 2]
    assert [one.seq for one in select_kept(records, 1, "eval/score", "max")] == [2, 4]


@given(runs(), st.integers(1, 6), st.sampled_from([None, "eval/score"]), orders, st.sets(st.integers(1, 50)))
def test_those_that_are_pinned_stay_beside_the_others(records, number, attribute, order, pinned):
    stays = select_kept(records, number, attribute, order, pinned)
    without = select_kept(records, number, attribute, order)
    assert list(stays) == [one for one in records if one in without or one.seq in pinned]
