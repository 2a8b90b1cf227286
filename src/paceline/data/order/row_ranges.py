"""Sets of row numbers as sorted, half-open ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Range = tuple[int, int]


def join_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Sort ranges and merge those that touch."""
    joined: list[Range] = []
    for begin, stop in sorted(ranges):
        if begin >= stop:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((begin, stop))
    return joined


def subtract_ranges(span: Range, excluded: Iterable[Range]) -> list[Range]:
    """Return the rest of `span` without the excluded ranges."""
    rest, first = [], span[0]
    for begin, stop in join_ranges(excluded):
        if begin > first:
            rest.append((first, min(begin, span[1])))
        first = max(first, stop)
    rest.append((first, span[1]))
    return [(begin, stop) for begin, stop in rest if begin < stop]


def intersect_ranges(ranges: Sequence[Range], other_ranges: Sequence[Range]) -> list[Range]:
    """Return the rows that are in both."""
    return join_ranges((max(a, c), min(b, d)) for a, b in ranges for c, d in other_ranges)


def num_rows_in(ranges: Iterable[Range]) -> int:
    return sum(stop - begin for begin, stop in ranges)


def take_head(ranges: Iterable[Range], num: int) -> list[Range]:
    """Return the first `num` rows, or all if there are fewer."""
    return RangeCursor(ranges).take(num)


class RangeCursor:
    """Takes rows from the front of some ranges."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._rest = list(reversed(list(ranges)))

    @property
    def remaining(self) -> list[Range]:
        return list(reversed(self._rest))

    def take(self, num: int) -> list[Range]:
        head = []
        while num > 0 and self._rest:
            begin, stop = self._rest.pop()
            if stop - begin > num:
                self._rest.append((begin + num, stop))
                stop = begin + num
            head.append((begin, stop))
            num -= stop - begin
        return head
