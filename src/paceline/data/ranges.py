"""Sets of row numbers as sorted ranges, each from its first row to the one after its last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Range = tuple[int, int]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Sorted, with no two that touch."""
    found: list[Range] = []
    for begin, stop in sorted(ranges):
        if begin >= stop:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((begin, stop))
    return found


def without(span: Range, gone: Iterable[Range]) -> list[Range]:
    """What is left of one range."""
    found, first = [], span[0]
    for begin, stop in joined(gone):
        if begin > first:
            found.append((first, min(begin, span[1])))
        first = max(first, stop)
    found.append((first, span[1]))
    return [(begin, stop) for begin, stop in found if begin < stop]


def within(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """What both have."""
    return joined((max(a, c), min(b, d)) for a, b in ranges for c, d in others)


def size(ranges: Iterable[Range]) -> int:
    return sum(stop - begin for begin, stop in ranges)


def head(ranges: Iterable[Range], num: int) -> list[Range]:
    """The first rows, `num` of them if there are."""
    return Walk(ranges).take(num)


class Walk:
    """Takes rows off the front of some ranges."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._left = list(reversed(list(ranges)))

    @property
    def left(self) -> list[Range]:
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
