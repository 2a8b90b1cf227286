"""Decides which checkpoints to keep. Pure: records in, records out."""

from collections.abc import Collection, Sequence

import msgspec

from paceline._core.arguments import is_number
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.plain_values import from_plain, get_metric


def rank_checkpoints(
    records: Sequence[CheckpointRecord], score_attribute: str | None, score_order: str
) -> list[CheckpointRecord]:
    """Sort the records from worst to best; without a score attribute, from oldest to newest.

    A score that is missing, not a number or nan ranks last in either order. Of equal scores the later report is better.
    """
    if score_attribute is None:
        return sorted(records, key=lambda record: record.seq)
    sign = 1 if score_order == "max" else -1

    def sort_key(record: CheckpointRecord) -> tuple[bool, float, int]:
        score = checkpoint_score(record, score_attribute)
        return score is not None, sign * score if score is not None else 0, record.seq

    return sorted(records, key=sort_key)


def select_kept(
    records: Sequence[CheckpointRecord],
    num_to_keep: int | None,
    score_attribute: str | None = None,
    score_order: str = "max",
    pinned: Collection[int] = (),
) -> tuple[CheckpointRecord, ...]:
    """Return the records to keep.

    These are the best `num_to_keep`, the newest (a restart resumes from it), those whose score is still to come, and
    those whose number is in `pinned` (others start from them).
    """
    if num_to_keep is None or len(records) <= num_to_keep:
        return tuple(records)
    stay = {record.seq for record in rank_checkpoints(records, score_attribute, score_order)[-num_to_keep:]}
    stay.add(max(record.seq for record in records))
    stay |= {record.seq for record in records if record.status == "PENDING_VALIDATION"}
    stay.update(pinned)
    return tuple(record for record in records if record.seq in stay)


def checkpoint_score(record: CheckpointRecord, attribute: str) -> float | None:
    """Return the score; None if missing, not a number or nan. Integers stay exact: they may exceed any float."""
    score = get_metric(from_plain(msgspec.json.decode(record.metrics)), attribute)
    return score if is_number(score) and score == score else None  # nan is not equal to itself
