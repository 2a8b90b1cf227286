"""Numbers sorted by their digits have the order that Arrow gives them by comparing."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from paceline.data.block import Block
from paceline.data.planning import sort_keys
from paceline.data.planning.sort_keys import SortKeys

NUM_ROWS = 5000
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e308, -1e308, 1.0])


def make_columns() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(1)
    return {
        "random": random.standard_normal(NUM_ROWS),
        "special": SPECIAL[random.integers(0, len(SPECIAL), NUM_ROWS)],
        "float32": random.random(NUM_ROWS).astype(np.float32),
        "few": random.integers(-5, 5, NUM_ROWS).astype(np.int8),
        "unsigned": random.integers(0, 2**64, NUM_ROWS, dtype=np.uint64),
        "widest": np.where(random.random(NUM_ROWS) < 0.5, -(2**63), 2**63 - 1),
        "bool": random.integers(0, 2, NUM_ROWS).astype(bool),
        "same": np.full(NUM_ROWS, 7),
        "equal highest bits": (1 << 60) * random.integers(0, 3, NUM_ROWS) + random.integers(0, 40, NUM_ROWS),
        "sorted runs": np.sort(random.random(NUM_ROWS).reshape(2, -1), axis=1).reshape(-1),
        "foreign byte order": random.random(NUM_ROWS).astype(">f8"),
    }


@pytest.mark.parametrize("down", [False, True])
def test_the_order_by_digits_is_the_stable_order_by_comparison(down: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block(make_columns())
    names = list(block.columns)
    chosen = [SortKeys((name,), (down,)) for name in names]
    chosen += [SortKeys(pair, (down, not down)) for pair in product(names[:4], names) if len(set(pair)) == 2]
    by_digits = [keys.sort_indices(block) for keys in chosen]
    monkeypatch.setattr(sort_keys, "_MIN_RADIX_ROWS", NUM_ROWS + 1)
    for keys, order in zip(chosen, by_digits, strict=True):
        np.testing.assert_array_equal(order, keys.sort_indices(block), str(keys))
