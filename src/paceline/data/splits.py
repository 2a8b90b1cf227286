"""Cutting a dataset into several: every row in one of them, and in the same one in every epoch.

A dataset whose rows are counted in its files is cut without reading them: each part reads its own. Of any other, the
rows are computed once and kept, for they have to be counted anyway.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from paceline.data import look
from paceline.data.barriers import RandomShuffle, Ready, Repartition, Sliced
from paceline.data.block import Block, as_numpy
from paceline.data.feeds import Feeds, LocalFeeds, is_small
from paceline.data.iterator import DataIterator
from paceline.data.optimize import with_inputs
from paceline.data.plan import Map, Node, Read, Reorder, walk
from paceline.data.position import Mode, Split
from paceline.data.source import Unit
from paceline.data.transforms.columns import Select


def at_indices(plan: Node, indices: Sequence[int]) -> list[Node]:
    """The rows before the first index, those from there to the second, and so on to the end."""
    indices = list(indices)
    if not indices:
        raise ValueError("split_at_indices needs one index or more")
    for index in indices:
        if isinstance(index, bool) or not isinstance(index, int | np.integer) or index < 0:
            raise ValueError(f"split_at_indices takes whole numbers that are not negative, not {index!r}")
    if indices != sorted(indices):
        raise ValueError(f"split_at_indices takes indices in ascending order, not {indices}")
    return _cut(countable(plan), [0, *map(int, indices), None])


def in_proportion(plan: Node, proportions: Sequence[float]) -> list[Node]:
    """A part of each of these proportions, and one more of what they leave."""
    proportions = list(proportions)
    for part in proportions:
        if isinstance(part, bool) or not isinstance(part, int | float) or not 0 < part < 1:
            raise ValueError(f"split_proportionately takes numbers between 0 and 1, not {part!r}")
    parts = [_exactly(part) for part in proportions]
    if not parts or sum(parts) >= 1:
        raise ValueError(f"the proportions must add up to less than 1, for the rest is a part too; not {proportions}")
    plan = countable(plan)
    num_rows = look.num_rows(plan)
    ends = [math.floor(num_rows * sum(parts[: number + 1])) for number in range(len(parts))]
    return _cut(plan, [0, *ends, None])


def evenly(plan: Node, num: int, *, equal: bool) -> list[Node]:
    """So many parts: equal ones, or such as differ by one row at most."""
    if isinstance(num, bool) or not isinstance(num, int) or num < 1:
        raise ValueError(f"split takes a whole number of at least 1, not {num!r}")
    plan = countable(plan)
    num_rows = look.num_rows(plan)
    if equal:
        num_rows -= num_rows % num
    return _cut(plan, [part * num_rows // num for part in range(num + 1)])


def train_and_test(
    plan: Node, test_size: int | float, *, shuffle: bool, seed: int, stratify: str | None
) -> tuple[Node, Node]:
    """The rows to train with, and `test_size` of them, as a number or a part of all, to test with."""
    _check_size(test_size)
    if shuffle:
        plan = RandomShuffle(plan, seed, every_epoch=False)
    rows = look.kept(settled(plan)) if stratify is not None else countable(plan)
    num_rows = look.num_rows(rows)
    if isinstance(test_size, int) and test_size >= num_rows:
        raise ValueError(f"test_size={test_size} leaves nothing to train with: there are {num_rows} rows")
    num_test = test_size if isinstance(test_size, int) else math.ceil(num_rows * _exactly(test_size))
    if stratify is not None and isinstance(rows, Read):
        return _stratified(rows, stratify, num_test)
    train, test = _cut(rows, [0, num_rows - num_test, None])
    return train, test


def streaming(plan: Node, num: int, *, equal: bool) -> list[DataIterator]:
    """Iterators for so many workers, which share one run of the plan."""
    if isinstance(num, bool) or not isinstance(num, int) or num < 1:
        raise ValueError(f"streaming_split takes a whole number of at least 1, not {num!r}")
    mode: Mode = "equal" if equal else "exact"
    return [DataIterator(feeds, Split(rank, num, mode)) for rank, feeds in enumerate(_shared(plan, num))]


def _shared(plan: Node, num: int) -> list[Feeds]:
    if is_small(plan):
        return [LocalFeeds(plan) for _ in range(num)]  # to run it again takes less than to share it
    from paceline.data.exec.processes import shared_service
    from paceline.data.exec.remote import RemoteFeeds

    service, name = shared_service(), secrets.token_hex(8)
    service.add(name, plan)
    return [RemoteFeeds(service.address, name, member, num) for member in range(num)]


def _check_size(test_size: Any) -> None:
    if isinstance(test_size, float) and 0 < test_size < 1:
        return
    if isinstance(test_size, int) and not isinstance(test_size, bool) and test_size >= 1:
        return
    raise ValueError(
        f"test_size must be a part of the rows, between 0 and 1, or a number of rows of at least 1; not {test_size!r}"
    )


def _exactly(part: float) -> Fraction:
    """The number that was written: 0.29 of 100 rows are 29, though the nearest float is less."""
    return Fraction(repr(float(part)))


def countable(plan: Node) -> Node:
    """A plan of the same rows in the same order in every epoch, of which it is known how many there are."""
    plan = settled(plan)
    return plan if look.known_rows(plan) is not None else look.kept(plan)


def settled(plan: Node) -> Node:
    """A plan whose rows have the order of epoch 0 in every epoch: a row may not change its part."""
    if any(isinstance(node, Repartition) and node.shuffle for node in walk(plan)):
        return look.kept(plan)
    match plan:
        case Reorder(every_epoch=True) | RandomShuffle(every_epoch=True):
            plan = replace(plan, every_epoch=False)
    return with_inputs(plan, tuple(map(settled, plan.inputs)))


def _cut(plan: Node, bounds: Sequence[int | None]) -> list[Node]:
    return [Sliced(plan, start or 0, stop) for start, stop in pairwise(bounds)]


def apportioned(counts: Sequence[int], num: int) -> list[int]:
    """`num` of the members of groups, so that each group gives its share to within one.

    Each gives what its share has in whole numbers; what is missing then comes from those with the largest rest.
    """
    total = sum(counts)
    if not total:
        return [0 for _ in counts]
    shares = [count * num // total for count in counts]
    rests = sorted(range(len(counts)), key=lambda group: (-(counts[group] * num % total), group))
    for group in rests[: num - sum(shares)]:
        shares[group] += 1
    return shares


def _stratified(plan: Read, column: str, num_test: int) -> tuple[Node, Node]:
    labels = _labels(plan, column)
    counts = Counter(label for unit in labels for label in unit)
    shares = dict(zip(counts, apportioned(list(counts.values()), num_test), strict=True))
    # The last rows of each class are tested with, as without classes the last of all.
    first_tested = {label: counts[label] - share for label, share in shares.items()}
    seen: Counter[Any] = Counter()
    tested: list[list[bool]] = []
    for unit in labels:
        tested.append([])
        for label in unit:
            tested[-1].append(seen[label] >= first_tested[label])
            seen[label] += 1
    units = plan.source.units()
    train = [Chosen(unit, np.flatnonzero(~np.array(test, bool))) for unit, test in zip(units, tested, strict=True)]
    test = [Chosen(unit, np.flatnonzero(np.array(test, bool))) for unit, test in zip(units, tested, strict=True)]
    schema = plan.source.schema()
    return Read(Ready("train_test_split", tuple(train), schema)), Read(Ready("train_test_split", tuple(test), schema))


def _labels(plan: Read, column: str) -> list[list[Any]]:
    """The values of a column, unit by unit, as something that can be counted."""
    labels: list[list[Any]] = [[] for _ in plan.source.units()]
    with closing(look.deliveries(Map(plan, Select((column,))))) as stream:
        for delivered in stream:
            values = as_numpy(delivered.block.column(column)).tolist()
            labels[delivered.unit] += [_countable(value, column) for value in values]
    return labels


def _countable(value: Any, column: str) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, list | dict | np.ndarray):
        raise TypeError(f"stratify={column!r} must be a column of classes, and its values are {type(value).__name__}s")
    return value


@dataclass(frozen=True, eq=False)
class Chosen:
    """Some rows of a unit."""

    unit: Unit
    rows: np.ndarray[Any, Any]

    @property
    def name(self) -> str:
        return self.unit.name

    @property
    def num_rows(self) -> int | None:
        return len(self.rows)

    @property
    def num_bytes(self) -> int | None:
        whole, num_rows = self.unit.num_bytes, self.unit.num_rows
        return None if whole is None or not num_rows else whole * len(self.rows) // num_rows

    def read(self) -> Iterator[Block]:
        first = 0
        for block in self.unit.read():
            begin, end = np.searchsorted(self.rows, [first, first + block.num_rows])
            yield block.take(self.rows[begin:end] - first)
            first += block.num_rows
