"""Sets of row numbers as sorted, half-open ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Range = tuple[int, int]


def join_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Sort ranges and merge those that touch."""
    found: list[Range] = []
    for begin, stop in sorted(ranges):
        if begin >= stop:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((begin, stop))
    return found


def subtract_ranges(span: Range, gone: Iterable[Range]) -> list[Range]:
    """Return what is left of `span` without `gone`."""
    found, first = [], span[0]
    for begin, stop in join_ranges(gone):
        if begin > first:
            found.append((first, min(begin, span[1])))
        first = max(first, stop)
    found.append((first, span[1]))
    return [(begin, stop) for begin, stop in found if begin < stop]


def intersect_ranges(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the rows that are in both."""
    return join_ranges((max(a, c), min(b, d)) for a, b in ranges for c, d in others)


def num_rows_in(ranges: Iterable[Range]) -> int:
    return sum(stop - begin for begin, stop in ranges)


def take_head(ranges: Iterable[Range], num: int) -> list[Range]:
    """Return the first `num` rows, or all if there are fewer."""
    return RangeCursor(ranges).take(num)


class RangeCursor:
    """Takes rows from the front of some ranges."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._left = list(reversed(list(ranges)))

    @property
    def remaining(self) -> list[Range]:
        return list(reversed(self._left))

    def take(self, num: int) -> list[Range]:
        taken = []
        while num > 0 and self._left:
            begin, stop = self._left.pop()
            if stop - begin > num:
                self._left.append((begin + num, stop))
                stop = begin + num
            taken.append((begin, stop))
            num -= stop - begin
        return taken
