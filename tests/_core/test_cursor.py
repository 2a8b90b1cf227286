"""How the places of several workers in a dataset become one."""

import json

import msgspec

from paceline._core.cursor import MAX_LEADS, Cursor, merge_cursors, merge_rank_cursors


def test_each_dataset_is_merged_by_itself_in_the_order_of_ranks():
    train, valid = Cursor(row=8, chunk=4, world=2), Cursor(row=4, chunk=4, world=2)
    joined = merge_rank_cursors([(1, (("train", train),)), (0, (("valid", valid), ("train", train)))])
    assert joined == (("train", train), ("valid", valid))
    first, second = Cursor(epoch=5), Cursor(epoch=0, row=3)  # Of workers that each read all.
    assert merge_rank_cursors([(1, (("all", second),)), (0, (("all", first),))]) == (("all", first),)


def test_a_cursor_is_small_also_with_many_leads():
    behind = Cursor(7, 10**10, 10**5, 10**6, 10**10, 10**11, "0" * 16, 4096, 64, 10**6, 7)
    others = [msgspec.structs.replace(behind, row=10**10 + 4096 * rank) for rank in range(1, 64)]
    cursor = merge_cursors([behind, *others])
    assert cursor.ahead is not None
    assert 1 < len(cursor.ahead.leads) <= MAX_LEADS
    assert len(msgspec.json.encode(cursor)) < 1024
    assert msgspec.convert(json.loads(msgspec.json.encode(cursor)), Cursor) == cursor
