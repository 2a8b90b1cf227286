"""Where two runs differ: metric by metric, and leaf by leaf of their checkpoints. Reads files, changes nothing."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline._core.errors import StorageError
from paceline._storage.commit import read_manifest
from paceline._storage.state import RawLeaf, holds_state, read_raw

_TELLS_TIME = re.compile(
    r"(^|[/_.])(time|times|timestamp|date|wall|clock|seconds|secs?|s|ms|elapsed|duration|took|eta|throughput"
    r"|per_s|per_sec|per_second|pid|host|hostname|memory|mem|rss)($|[/_.])"
)
"""Names of metrics that differ between any two runs."""


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in the run and in its replay."""

    kind: Literal["metric", "state", "file", "report"]
    name: str
    """`eval/loss`, `optimizer.state.0.exp_avg`, `model.pt`."""
    report: int
    rank: int | None = None
    original: Any = None
    resumed: Any = None
    amount: float | None = None
    """By how much numbers differ at most."""

    def __str__(self) -> str:
        if self.kind == "report":
            return f"report {self.report} of rank {self.rank} was not made"
        by = f" (by {'up to ' if self.kind == 'state' else ''}{self.amount:.3g})" if self.amount is not None else ""
        if self.kind == "metric":
            values = f"{self.original} in the run, {self.resumed} when resumed"
            return f"{self.name} of rank {self.rank} at report {self.report}: {values}{by}"
        return f"{self.name}{by}"


Metrics = Mapping[int, Mapping[int, Mapping[str, Any]]]
"""By rank and report."""


def metric_differences(
    original: Metrics, resumed: Metrics, reports: range, *, ignored: frozenset[str], tolerance: float
) -> list[Difference]:
    """In the order of reports, so that the first one is where the two part."""
    found = []
    for seq in reports:
        for rank in sorted(original):
            if seq not in resumed.get(rank, {}):
                found.append(Difference("report", "report", seq, rank))
                continue
            told, again = flat(original[rank][seq], "/"), flat(resumed[rank][seq], "/")
            for name in sorted(told.keys() | again.keys()):
                before, after = told.get(name), again.get(name)
                if name not in ignored and not _same(before, after, tolerance):
                    found.append(Difference("metric", name, seq, rank, before, after, _distance(before, after)))
    return found


def not_compared(original: Metrics, ignore: Sequence[str]) -> frozenset[str]:
    """The metrics that tell time, and those that the user named, by pattern."""
    names = {name for reports in original.values() for metrics in reports.values() for name in flat(metrics, "/")}
    return frozenset(
        name
        for name in names
        if _TELLS_TIME.search(name) or any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore)
    )


def checkpoint_differences(original: Path, resumed: Path, report: int, *, tolerance: float) -> list[Difference]:
    """The leaves of a state that differ, or the files where they cannot be looked into."""
    before, after = _hashes(original), _hashes(resumed)
    if before == after:
        return []
    if holds_state(original) and holds_state(resumed):
        found = _tree_differences(read_raw(original), read_raw(resumed), report, "", tolerance)
        names = {"state.json", "state.bin"}
    else:
        found, names = [], set()
    for name in sorted((before.keys() | after.keys()) - names):
        if before.get(name) != after.get(name):
            found += _file_differences(original / name, resumed / name, name, report, tolerance)
    return found


def leaf_paths(checkpoint: Path) -> list[str]:
    """What a checkpoint holds: the paths of its leaves, and the names of files that cannot be looked into."""
    paths = list(flat(read_raw(checkpoint))) if holds_state(checkpoint) else []
    for name in _hashes(checkpoint):
        if name not in ("state.json", "state.bin"):
            tree = _weights(checkpoint / name)
            paths += [f"{name}:{path}" for path in flat(tree)] if tree is not None else [name]
    return paths


def flat(value: Any, separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """A tree as one dict of its leaves by path."""
    return dict(_leaves(value, separator, prefix))


def _leaves(value: Any, separator: str, path: str) -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if _is_list(value) else None
    if not items:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, separator, f"{path}{separator}{key}" if path else str(key))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0


def _tree_differences(before: Any, after: Any, report: int, prefix: str, tolerance: float) -> list[Difference]:
    told, again = flat(before), flat(after)
    found = []
    for name in [*told, *(name for name in again if name not in told)]:
        one, other = told.get(name), again.get(name)
        if not _same(one, other, tolerance):
            amount = _distance(one, other)
            found.append(Difference("state", prefix + name, report, None, _short(one), _short(other), amount))
    return found


def _file_differences(before: Path, after: Path, name: str, report: int, tolerance: float) -> list[Difference]:
    told, again = _weights(before), _weights(after)
    if told is None or again is None:
        return [Difference("file", name, report)]
    return _tree_differences(told, again, report, f"{name}:", tolerance)


def _weights(path: Path) -> Any:
    """What torch reads from a file without running any code of it; None for another kind of file."""
    if path.suffix not in (".pt", ".pth") or not path.is_file():
        return None
    from paceline.train.torch.weights import raw_weights

    return raw_weights(path)


def _hashes(checkpoint: Path) -> dict[str, str]:
    manifest = read_manifest(checkpoint)
    if manifest is None:
        raise StorageError(f"{checkpoint} is not a committed checkpoint")
    return {entry.path: entry.hash for entry in manifest.files}


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, RawLeaf) and isinstance(other, RawLeaf):
        if one == other:
            return True
        if not tolerance or (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        numbers, others = _numbers(one), _numbers(other)
        if numbers is None or others is None:
            return False
        import numpy

        return bool(numpy.allclose(numbers, others, rtol=tolerance, atol=tolerance, equal_nan=True))
    if type(one) is not type(other) and not (_is_number(one) and _is_number(other)):
        return False
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    if _is_number(one) and _is_number(other) and tolerance:
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return bool(one == other)


def _distance(one: Any, other: Any) -> float | None:
    if _is_number(one) and _is_number(other):
        return float(abs(one - other))
    if not isinstance(one, RawLeaf) or not isinstance(other, RawLeaf) or one.shape != other.shape:
        return None
    numbers, others = _numbers(one), _numbers(other)
    if numbers is None or others is None or not len(numbers):
        return None
    return float(abs(numbers - others).max())


def _numbers(leaf: RawLeaf) -> Any:
    """The numbers of a leaf in double precision; None for what is not made of real numbers."""
    import numpy

    if leaf.dtype == "bfloat16":
        wide = numpy.frombuffer(leaf.data, numpy.uint16).astype(numpy.uint32) << 16
        return wide.view(numpy.float32).astype(numpy.float64)
    try:
        dtype = numpy.dtype(leaf.dtype)
    except TypeError:
        return None
    if leaf.kind not in ("tensor", "array") or dtype.kind not in "biuf":
        return None
    return numpy.frombuffer(leaf.data, dtype).astype(numpy.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> Any:
    if isinstance(value, RawLeaf):
        return f"{value.kind} {value.dtype} {list(value.shape)}"
    return value if isinstance(value, int | float | str | bool | None) else str(value)[:80]
