"""Find where two runs differ: by metric, and by leaf of their checkpoints. Reads files, changes nothing."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline._core.arguments import is_number
from paceline._core.errors import StorageError
from paceline._storage.commit import read_manifest
from paceline._storage.state import RawLeaf, has_state, read_raw_state

_TIME_DEPENDENT = re.compile(
    r"(^|[/_.])(time|times|timestamp|date|wall|clock|seconds|secs?|s|ms|elapsed|duration|took|eta|throughput"
    r"|per_s|per_sec|per_second|pid|host|hostname|memory|mem|rss)($|[/_.])"
)
"""Names of metrics that differ between any two runs."""


@dataclass(frozen=True)
class Difference:
    """One difference between the run and its replay."""

    kind: Literal["metric", "state", "file", "report"]
    name: str
    """`eval/loss`, `optimizer.state.0.exp_avg`, `model.pt`."""
    report: int
    rank: int | None = None
    original: Any = None
    resumed: Any = None
    amount: float | None = None
    """The largest difference between the numbers."""

    def __str__(self) -> str:
        if self.kind == "report":
            return f"report {self.report} of rank {self.rank} was not made"
        by = f" (by {'up to ' if self.kind == 'state' else ''}{self.amount:.3g})" if self.amount is not None else ""
        if self.kind == "metric":
            values = f"{self.original} in the run, {self.resumed} when resumed"
            return f"{self.name} of rank {self.rank} at report {self.report}: {values}{by}"
        return f"{self.name}{by}"


MetricsByRank = Mapping[int, Mapping[int, Mapping[str, Any]]]
"""By rank and report."""


def find_metric_differences(
    original: MetricsByRank, resumed: MetricsByRank, reports: range, *, ignored: frozenset[str], tolerance: float
) -> list[Difference]:
    """Return the differences in the order of reports, so the first one is where the runs diverge."""
    differences = []
    for seq in reports:
        for rank in sorted(original):
            if seq not in resumed.get(rank, {}):
                differences.append(Difference("report", "report", seq, rank))
                continue
            before_all, after_all = flatten_tree(original[rank][seq], "/"), flatten_tree(resumed[rank][seq], "/")
            for name in sorted(before_all.keys() | after_all.keys()):
                before, after = before_all.get(name), after_all.get(name)
                if name not in ignored and not _is_equal(before, after, tolerance):
                    values = before, after, _max_distance(before, after)
                    differences.append(Difference("metric", name, seq, rank, *values))
    return differences


def find_ignored_metrics(original: MetricsByRank, ignore: Sequence[str]) -> frozenset[str]:
    """Return the metrics that depend on time, and those that match the user's patterns."""
    names = {
        name for reports in original.values() for metrics in reports.values() for name in flatten_tree(metrics, "/")
    }
    return frozenset(
        name
        for name in names
        if _TIME_DEPENDENT.search(name) or any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore)
    )


def find_checkpoint_differences(original: Path, resumed: Path, report: int, *, tolerance: float) -> list[Difference]:
    """Return the leaves of a state that differ; for files that cannot be parsed, the files."""
    before, after = _read_hashes(original), _read_hashes(resumed)
    if before == after:
        return []
    if has_state(original) and has_state(resumed):
        differences = _find_tree_differences(read_raw_state(original), read_raw_state(resumed), report, "", tolerance)
        names = {"state.json", "state.bin"}
    else:
        differences, names = [], set()
    for name in sorted((before.keys() | after.keys()) - names):
        if before.get(name) != after.get(name):
            weights, weights_after = _read_weights(original / name), _read_weights(resumed / name)
            if weights is None or weights_after is None:
                differences.append(Difference("file", name, report))
            else:
                differences += _find_tree_differences(weights, weights_after, report, f"{name}:", tolerance)
    return differences


def list_leaf_paths(checkpoint: Path) -> list[str]:
    """List a checkpoint's contents: the paths of its leaves, and the names of files that cannot be parsed."""
    paths = list(flatten_tree(read_raw_state(checkpoint))) if has_state(checkpoint) else []
    for name in _read_hashes(checkpoint):
        if name not in ("state.json", "state.bin"):
            tree = _read_weights(checkpoint / name)
            paths += [f"{name}:{path}" for path in flatten_tree(tree)] if tree is not None else [name]
    return paths


def flatten_tree(value: Any, separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """Flatten a tree of dicts and lists into a dict of its leaves by path."""
    parts = dict(enumerate(value)) if isinstance(value, list | tuple) else value
    if not isinstance(parts, Mapping) or not parts:
        return {prefix: value}
    leaves: dict[str, Any] = {}
    for key, part in parts.items():
        leaves |= flatten_tree(part, separator, f"{prefix}{separator}{key}" if prefix else str(key))
    return leaves


def _find_tree_differences(before: Any, after: Any, report: int, prefix: str, tolerance: float) -> list[Difference]:
    leaves, leaves_after = flatten_tree(before), flatten_tree(after)
    differences = []
    for name in [*leaves, *(name for name in leaves_after if name not in leaves)]:
        value, value_after = leaves.get(name), leaves_after.get(name)
        if not _is_equal(value, value_after, tolerance):
            values = _summarize_value(value), _summarize_value(value_after), _max_distance(value, value_after)
            differences.append(Difference("state", prefix + name, report, None, *values))
    return differences


def _read_weights(path: Path) -> Any:
    """Load what torch can read from a file without running its code; None for another kind of file."""
    if path.suffix not in (".pt", ".pth") or not path.is_file():
        return None
    from paceline.train.torch.checkpoint import read_raw_weights

    return read_raw_weights(path)


def _read_hashes(checkpoint: Path) -> dict[str, str]:
    manifest = read_manifest(checkpoint)
    if manifest is None:
        raise StorageError(f"{checkpoint} is not a committed checkpoint")
    return {entry.path: entry.hash for entry in manifest.files}


def _is_equal(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, RawLeaf) and isinstance(other, RawLeaf):
        if one == other:
            return True
        if not tolerance or (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        numbers, others = _to_float64(one), _to_float64(other)
        if numbers is None or others is None:
            return False
        import numpy

        return bool(numpy.allclose(numbers, others, rtol=tolerance, atol=tolerance, equal_nan=True))
    if type(one) is not type(other) and not (is_number(one) and is_number(other)):
        return False
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    if is_number(one) and is_number(other) and tolerance:
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return bool(one == other)


def _max_distance(one: Any, other: Any) -> float | None:
    if is_number(one) and is_number(other):
        return float(abs(one - other))
    if not isinstance(one, RawLeaf) or not isinstance(other, RawLeaf) or one.shape != other.shape:
        return None
    numbers, others = _to_float64(one), _to_float64(other)
    if numbers is None or others is None or not len(numbers):
        return None
    return float(abs(numbers - others).max())


def _to_float64(leaf: RawLeaf) -> Any:
    """Convert a leaf to double precision; None if it does not consist of real numbers."""
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


def _summarize_value(value: Any) -> Any:
    if isinstance(value, RawLeaf):
        return f"{value.kind} {value.dtype} {list(value.shape)}"
    return value if isinstance(value, int | float | str | bool | None) else str(value)[:80]
