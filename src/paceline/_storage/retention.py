"""Which checkpoints stay. Pure: records in, records out."""

import math
from collections.abc import Collection, Sequence

import msgspec

from paceline._core.plain import looked_up, unplain
from paceline._engine.messages import CheckpointRecord


def ranked(
    records: Sequence[CheckpointRecord], score_attribute: str | None, score_order: str
) -> list[CheckpointRecord]:
    """The records from worst to best; without a score attribute, from oldest to newest.

    A score that is missing, not a number or nan ranks last in either order; of equals the later report is the better.
    """
    if score_attribute is None:
        return sorted(records, key=lambda record: record.seq)
    sign = 1 if score_order == "max" else -1

    def standing(record: CheckpointRecord) -> tuple[bool, float, int]:
        score = score_of(record, score_attribute)
        return score is not None, sign * score if score is not None else 0, record.seq

    return sorted(records, key=standing)


def kept(
    records: Sequence[CheckpointRecord],
    num_to_keep: int | None,
    score_attribute: str | None = None,
    score_order: str = "max",
    pinned: Collection[int] = (),
) -> tuple[CheckpointRecord, ...]:
    """The best `num_to_keep`; always the newest, which a restart continues from; those whose score is to come; and
    those that are pinned, by their number, since others begin from them."""
    if num_to_keep is None or len(records) <= num_to_keep:
        return tuple(records)
    stay = {record.seq for record in ranked(records, score_attribute, score_order)[-num_to_keep:]}
    stay.add(max(record.seq for record in records))
    stay |= {record.seq for record in records if record.status == "PENDING_VALIDATION"}
    stay.update(pinned)
    return tuple(record for record in records if record.seq in stay)


def score_of(record: CheckpointRecord, attribute: str) -> float | None:
    """A number that can be compared; an integer stays one, for it may be larger than any float."""
    score = looked_up(unplain(msgspec.json.decode(record.metrics)), attribute)
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        return None
    return None if isinstance(score, float) and math.isnan(score) else score
