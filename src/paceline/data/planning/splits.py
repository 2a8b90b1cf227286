"""Splits a dataset into several: every row is in exactly one of them, the same one in every epoch.

If files know their row counts, nothing is read to split: each part reads its own rows. Otherwise the rows are computed
once and kept, since they have to be counted anyway.
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

from paceline._core.arguments import bad_value, check_int, check_number, is_int
from paceline.data.block import Block, as_numpy
from paceline.data.iterator import DataIterator
from paceline.data.order.feeds import Feeds, LocalFeeds, is_small
from paceline.data.order.sharding import Mode, WorkerShard
from paceline.data.planning import plan_queries
from paceline.data.planning.barriers import PreparedSource, RandomShuffle, Repartition, SliceRows
from paceline.data.planning.optimizer import with_inputs
from paceline.data.planning.plan import Map, PlanNode, Read, ReorderUnits, Unit, walk
from paceline.data.transforms.columns import SelectColumns


def split_at_indices(plan: PlanNode, indices: Sequence[int]) -> list[PlanNode]:
    indices = list(indices)
    if not indices:
        raise bad_value("indices", "one index or more", indices)
    for index in indices:
        check_int("indices", index.item() if hasattr(index, "item") else index, at_least=0)
    if indices != sorted(indices):
        raise bad_value("indices", "in ascending order", indices)
    return _slice_at(make_countable(plan), [0, *map(int, indices), None])


def split_proportionately(plan: PlanNode, proportions: Sequence[float]) -> list[PlanNode]:
    proportions = list(proportions)
    for part in proportions:
        check_number("proportions", part, above=0, below=1)
    parts = [_exact_fraction(part) for part in proportions]
    if not parts or sum(parts) >= 1:
        raise ValueError(f"proportions must add up to less than 1, got {proportions}: the remainder is a part too")
    plan = make_countable(plan)
    num_rows = plan_queries.count_rows(plan)
    ends = [math.floor(num_rows * sum(parts[: number + 1])) for number in range(len(parts))]
    return _slice_at(plan, [0, *ends, None])


def split_evenly(plan: PlanNode, num: int, *, equal: bool) -> list[PlanNode]:
    """Split into `num` parts: equal ones, or parts that differ by at most one row."""
    check_int("n", num, at_least=1)
    plan = make_countable(plan)
    num_rows = plan_queries.count_rows(plan)
    if equal:
        num_rows -= num_rows % num
    return _slice_at(plan, [part * num_rows // num for part in range(num + 1)])


def split_train_test(
    plan: PlanNode, test_size: int | float, *, shuffle: bool, seed: int, stratify: str | None
) -> tuple[PlanNode, PlanNode]:
    if not (0 < test_size < 1 if isinstance(test_size, float) else is_int(test_size) and test_size >= 1):
        raise bad_value("test_size", "a fraction between 0 and 1 or a positive number of rows", test_size)
    if shuffle:
        plan = RandomShuffle(plan, seed, every_epoch=False)
    rows = plan_queries.materialize_rows(fix_order(plan)) if stratify is not None else make_countable(plan)
    num_rows = plan_queries.count_rows(rows)
    if isinstance(test_size, int) and test_size >= num_rows:
        raise ValueError(f"test_size must be less than the number of rows, {num_rows}, got {test_size}")
    num_test = test_size if isinstance(test_size, int) else math.ceil(num_rows * _exact_fraction(test_size))
    if stratify is not None and isinstance(rows, Read):
        return _split_stratified(rows, stratify, num_test)
    train, test = _slice_at(rows, [0, num_rows - num_test, None])
    return train, test


def split_streaming(plan: PlanNode, num: int, *, equal: bool) -> list[DataIterator]:
    """Return iterators for `num` workers that share one execution of the plan."""
    check_int("n", num, at_least=1)
    mode: Mode = "equal" if equal else "exact"
    return [DataIterator(feeds, WorkerShard(rank, num, mode)) for rank, feeds in enumerate(_share_feeds(plan, num))]


def _share_feeds(plan: PlanNode, num: int) -> list[Feeds]:
    if is_small(plan):
        return [LocalFeeds(plan) for _ in range(num)]  # running it again is cheaper than sharing it
    from paceline.data.exec.service import shared_service
    from paceline.data.exec.service_client import RemoteFeeds

    service, name = shared_service(), secrets.token_hex(8)
    service.add_dataset(name, plan)
    return [RemoteFeeds(service.address, name, member, num) for member in range(num)]


def _exact_fraction(part: float) -> Fraction:
    """Return the decimal as written: 0.29 of 100 rows is 29, though the nearest float is less."""
    return Fraction(repr(float(part)))


def make_countable(plan: PlanNode) -> PlanNode:
    """Return a plan of the same rows with a known count and the same order in every epoch."""
    plan = fix_order(plan)
    return plan if plan_queries.known_num_rows(plan) is not None else plan_queries.materialize_rows(plan)


def fix_order(plan: PlanNode) -> PlanNode:
    """Fix the order of a plan to that of epoch 0: a row must not change its part."""
    if any(isinstance(node, Repartition) and node.shuffle for node in walk(plan)):
        return plan_queries.materialize_rows(plan)
    match plan:
        case ReorderUnits(every_epoch=True) | RandomShuffle(every_epoch=True):
            plan = replace(plan, every_epoch=False)
    return with_inputs(plan, tuple(map(fix_order, plan.inputs)))


def _slice_at(plan: PlanNode, bounds: Sequence[int | None]) -> list[PlanNode]:
    return [SliceRows(plan, start or 0, stop) for start, stop in pairwise(bounds)]


def apportion(counts: Sequence[int], num: int) -> list[int]:
    """Divide `num` among groups, so that each group's share is exact to within one.

    Each group gives the integer part of its share; the rest comes from groups with the largest remainders.
    """
    total = sum(counts)
    if not total:
        return [0 for _ in counts]
    shares = [count * num // total for count in counts]
    rests = sorted(range(len(counts)), key=lambda group: (-(counts[group] * num % total), group))
    for group in rests[: num - sum(shares)]:
        shares[group] += 1
    return shares


def _split_stratified(plan: Read, column: str, num_test: int) -> tuple[PlanNode, PlanNode]:
    labels = _collect_labels(plan, column)
    counts = Counter(label for unit in labels for label in unit)
    shares = dict(zip(counts, apportion(list(counts.values()), num_test), strict=True))
    # The last rows of each class are for testing, as the last rows of all are without classes.
    first_tested = {label: counts[label] - share for label, share in shares.items()}
    num_passed: Counter[Any] = Counter()
    tested: list[list[bool]] = []
    for unit in labels:
        tested.append([])
        for label in unit:
            tested[-1].append(num_passed[label] >= first_tested[label])
            num_passed[label] += 1
    units = plan.source.units()

    def select_rows(in_test: bool) -> Read:
        parts = (
            SelectedRowsUnit(unit, np.flatnonzero(np.array(test, bool) == in_test))
            for unit, test in zip(units, tested, strict=True)
        )
        return Read(PreparedSource("train_test_split", tuple(parts), plan.source.schema()))

    return select_rows(in_test=False), select_rows(in_test=True)


def _collect_labels(plan: Read, column: str) -> list[list[Any]]:
    labels: list[list[Any]] = [[] for _ in plan.source.units()]
    with closing(plan_queries.stream_deliveries(Map(plan, SelectColumns((column,))))) as stream:
        for delivered in stream:
            values = as_numpy(delivered.block.column(column)).tolist()
            labels[delivered.unit] += [_check_label(value, column) for value in values]
    return labels


def _check_label(value: Any, column: str) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, list | dict | np.ndarray):
        raise TypeError(f"stratify must be a column of classes, got {column!r} with a {type(value).__name__} in a row")
    return value


@dataclass(frozen=True, eq=False)
class SelectedRowsUnit:
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
        num_bytes, num_rows = self.unit.num_bytes, self.unit.num_rows
        return None if num_bytes is None or not num_rows else num_bytes * len(self.rows) // num_rows

    def read(self) -> Iterator[Block]:
        first = 0
        for block in self.unit.read():
            begin, end = np.searchsorted(self.rows, [first, first + block.num_rows])
            yield block.take(self.rows[begin:end] - first)
            first += block.num_rows
