"""How the places of several workers in a dataset become one."""

import json

import msgspec

from paceline._core.cursor import MAX_LEADS, ConsumedAhead, Cursor, merge_cursors, merge_rank_cursors


def test_workers_in_step_stand_at_one_place():
    cursor = Cursor(epoch=2, row=64, unit=3, offset=4, at=64, chunk=8, world=2)
    assert merge_cursors([cursor, cursor]) == cursor


def test_of_workers_out_of_step_the_last_counts_and_the_leads_are_noted():
    behind, ahead = Cursor(epoch=1, row=16, chunk=8, world=2), Cursor(epoch=1, row=32, chunk=8, world=2)
    noted = ConsumedAhead(row=16, leads=((32, "1"),), chunk=8, world=2)
    assert merge_cursors([ahead, behind]) == msgspec.structs.replace(behind, ahead=noted)


def test_a_worker_in_the_next_epoch_has_done_all_of_this_one():
    behind = Cursor(epoch=1, row=16, chunk=8, world=2)
    done = Cursor(epoch=2, total=40, chunk=8, world=2)
    noted = ConsumedAhead(row=16, leads=((40, "2"),), chunk=8, world=2)
    assert merge_cursors([behind, done]) == msgspec.structs.replace(behind, ahead=noted)


def test_of_workers_that_each_read_all_the_first_counts():
    first, second = Cursor(epoch=5), Cursor(epoch=0, row=3)
    assert merge_cursors([first, second]) == first


def test_each_dataset_is_merged_by_itself_in_the_order_of_ranks():
    train, valid = Cursor(row=8, chunk=4, world=2), Cursor(row=4, chunk=4, world=2)
    joined = merge_rank_cursors([(1, (("train", train),)), (0, (("valid", valid), ("train", train)))])
    assert joined == (("train", train), ("valid", valid))


def test_a_cursor_is_small_also_with_many_leads():
    behind = Cursor(7, 10**10, 10**5, 10**6, 10**10, 10**11, "0" * 16, 4096, 64, 10**6, 7)
    others = [msgspec.structs.replace(behind, row=10**10 + 4096 * rank) for rank in range(1, 64)]
    cursor = merge_cursors([behind, *others])
    assert cursor.ahead is not None
    assert 1 < len(cursor.ahead.leads) <= MAX_LEADS
    assert len(msgspec.json.encode(cursor)) < 1024
    assert msgspec.convert(json.loads(msgspec.json.encode(cursor)), Cursor) == cursor
