"""Draws the last values of a metric as one line of blocks, `▇▅▃▂▁`. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = " "


def sparkline(values: Iterable[float | None], width: int) -> str:
    """Draw the last `width` values, one character each, scaled from their minimum to their maximum.

    A value that is not a finite number is a gap. Equal values are a line in the middle.
    """
    if width < 1:
        return ""
    last = [*islice(reversed([*values]), width)][::-1]
    finite = [value for value in last if value is not None and math.isfinite(value)]
    if not finite:
        return GAP * len(last)
    low, high = min(finite), max(finite)
    return "".join(_block(value, low, high) if value is not None and math.isfinite(value) else GAP for value in last)


def _block(value: float, low: float, high: float) -> str:
    # Halved, since the full difference may be more than a float can hold.
    span = high / 2 - low / 2
    if span <= 0:
        return BLOCKS[len(BLOCKS) // 2 - 1]
    share = (value / 2 - low / 2) / span
    return BLOCKS[min(len(BLOCKS) - 1, max(0, int(share * len(BLOCKS))))]
