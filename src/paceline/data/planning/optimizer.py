"""Optimizes a plan: the same rows for less work.

Readers learn which columns are needed and which rows will be dropped, and limits move before row-by-row transforms.
Requests pass only through transforms that can be inspected: what a user's function needs is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

from paceline.data.expressions import Expr, rename_columns
from paceline.data.planning.barriers import GroupBy, Materialize, RandomShuffle, Repartition, SliceRows, Sort
from paceline.data.planning.plan import Map, PlanNode, Read, ReorderUnits, Source, Transform, Union
from paceline.data.transforms.columns import (
    DropColumns,
    FilterExpression,
    RenameAllColumns,
    RenameColumns,
    SelectColumns,
    WithColumn,
    WithColumns,
)
from paceline.data.transforms.rows import LimitRows, RandomSample

REORDERING = (ReorderUnits, RandomShuffle, Sort, Repartition, Materialize)
"""Nodes that only reorder rows, or divide them into other units."""


@dataclass(frozen=True)
class PushdownRequest:
    """What the nodes above need from a node."""

    columns: frozenset[str] | None = None
    """None means all."""
    predicates: tuple[Expr, ...] = ()
    """Rows that fail one of them are dropped later."""

    def with_columns(self, *names: str) -> PushdownRequest:
        return self if self.columns is None else replace(self, columns=self.columns | {*names})


def optimize_plan(plan: PlanNode) -> PlanNode:
    return _push_down(_limit_early(plan), PushdownRequest())


def known_columns(node: PlanNode) -> tuple[str, ...] | None:
    types = known_types(node)
    return None if types is None else tuple(types)


def known_types(node: PlanNode) -> dict[str, Any] | None:
    """Return the columns of a node and their types, if known without reading rows.

    The type of a computed column is None.
    """
    match node:
        case Read(source=source):
            schema = source.schema()
            return None if schema is None else dict(zip(schema.names, schema.types, strict=True))
        case Map(input=below, transform=transform):
            types = known_types(below)
            return None if types is None else _transform_types(types, transform)
        case Union(parts=(first, *rest)):
            types = known_types(first)
            return types if all(known_types(part) == types for part in rest) else None
    return known_types(node.inputs[0]) if isinstance(node, (*REORDERING, SliceRows)) else None


def _transform_types(types: dict[str, Any], transform: Transform) -> dict[str, Any] | None:
    match transform:
        case SelectColumns(columns=columns) if {*columns} <= {*types}:
            return {name: types[name] for name in columns}
        case DropColumns(columns=dropped) if {*dropped} <= {*types}:
            return {name: kind for name, kind in types.items() if name not in dropped}
        case RenameColumns(names=names) if {*names} <= {*types}:
            return {names.get(name, name): kind for name, kind in types.items()}
        case RenameAllColumns(columns=columns) if len(columns) == len(types):
            return dict(zip(columns, types.values(), strict=True))
        case WithColumn(column=column):
            return {**types, column: None}
        case WithColumns(exprs=exprs):
            return {**types, **dict.fromkeys(exprs)}
        case FilterExpression() | RandomSample() | LimitRows():
            return types
    return None


def _limit_early(node: PlanNode) -> PlanNode:
    """Move limits before transforms that keep rows one-to-one, so that these process only the limited rows."""
    if isinstance(node, SliceRows) and isinstance(node.input, Map) and node.input.transform.keeps_rows:
        above = node.input
        return replace(above, input=_limit_early(replace(node, input=above.input)))
    return with_inputs(node, tuple(map(_limit_early, node.inputs)))


def _push_down(node: PlanNode, request: PushdownRequest) -> PlanNode:
    match node:
        case Read(source=source):
            narrower = _narrow_source(source, request)
            return node if narrower is source else Read(narrower)
        case Map(input=below):
            return _push_through_map(node, below, request)
        case ReorderUnits() | Union():
            return _push_to_inputs(node, request)
        case RandomShuffle() | Repartition() | SliceRows() | Materialize():
            # No predicates: the position of each row depends on all rows, so none can be dropped earlier.
            return _push_to_inputs(node, PushdownRequest(request.columns))
        case Sort(keys=keys):
            return _push_to_inputs(node, PushdownRequest(request.columns).with_columns(*keys))
        case GroupBy(keys=keys, aggregates=aggregates):
            columns = [getattr(one, "on", None) for one in aggregates]
            return _push_to_inputs(
                node, PushdownRequest(frozenset((*keys, *map(str, columns))) if all(columns) else None)
            )
    return _push_to_inputs(node, PushdownRequest())


def _push_through_map(node: Map, below: PlanNode, request: PushdownRequest) -> PlanNode:
    match node.transform:
        case SelectColumns(columns=columns):
            if _is_covered(columns, below):
                return _push_through_map(replace(node, input=below.inputs[0]), below.inputs[0], request)
            return _push_to_inputs(node, replace(request, columns=frozenset(columns)))
        case DropColumns(columns=dropped):
            existing = known_columns(below)
            if existing is not None and {*dropped} < {*existing}:
                selection = SelectColumns(tuple(name for name in existing if name not in dropped))
                return _push_through_map(replace(node, transform=selection), below, request)
            return _push_to_inputs(node, request.with_columns(*dropped))
        case RenameColumns() as rename:
            return _push_through_rename(node, below, rename, request)
        case RenameAllColumns(columns=columns):
            existing = known_columns(below)
            if existing is None or len(existing) != len(columns):
                return _push_to_inputs(node, PushdownRequest())
            pairs = tuple((old, new) for old, new in zip(existing, columns, strict=True) if old != new)
            return _push_through_rename(
                replace(node, transform=RenameColumns(pairs)), below, RenameColumns(pairs), request
            )
        case WithColumn(column=column, expr=expr):
            predicates = tuple(one for one in request.predicates if column not in one.columns())
            needed = None if request.columns is None else (request.columns - {column}) | expr.columns()
            return _push_to_inputs(node, PushdownRequest(needed, predicates))
        case WithColumns(exprs=exprs):
            predicates = tuple(one for one in request.predicates if not one.columns() & {*exprs})
            used = frozenset(name for expr in exprs.values() for name in expr.columns())
            needed = None if request.columns is None else (request.columns - {*exprs}) | used
            return _push_to_inputs(node, PushdownRequest(needed, predicates))
        case FilterExpression(expr=expr):
            return _push_to_inputs(
                node, replace(request, predicates=(*request.predicates, expr)).with_columns(*expr.columns())
            )
        case RandomSample() | LimitRows():
            return _push_to_inputs(node, PushdownRequest(request.columns))
    return _push_to_inputs(node, PushdownRequest())


def _push_through_rename(node: Map, below: PlanNode, rename: RenameColumns, request: PushdownRequest) -> PlanNode:
    existing = known_columns(below)
    changed = None if existing is None else [rename.names.get(name, name) for name in existing]
    if existing is None or changed is None or not {*rename.names} <= {*existing} or len({*changed}) < len(changed):
        return _push_to_inputs(node, PushdownRequest())  # the error about the names must still be raised
    old_names = {new: old for old, new in rename.pairs}
    predicates = tuple(rename_columns(one, old_names) for one in request.predicates)
    if request.columns is None or not request.columns <= {*changed}:
        return _push_to_inputs(node, PushdownRequest(None, predicates))
    needed = tuple(old for old, new in zip(existing, changed, strict=True) if new in request.columns)
    pairs = tuple((old, new) for old, new in rename.pairs if new in request.columns)
    selected = Map(below, SelectColumns(needed))
    return replace(
        node,
        transform=RenameColumns(pairs),
        input=_push_through_map(selected, below, PushdownRequest(None, predicates)),
    )


def _is_covered(columns: tuple[str, ...], below: PlanNode) -> bool:
    """Whether `below` is another valid selection that contains all these columns."""
    if not isinstance(below, Map) or not isinstance(below.transform, SelectColumns):
        return False
    existing = known_columns(below.input)
    return existing is not None and {*columns} <= {*below.transform.columns} <= {*existing}


def _narrow_source(source: Source, request: PushdownRequest) -> Source:
    if request.columns is None and not request.predicates:
        return source
    schema = source.schema()
    existing = None if schema is None else {*schema.names}
    # A missing column must fail later, where it is used: that error lists the existing columns.
    predicates = [one for one in request.predicates if existing is None or one.columns() <= existing]
    if predicates:
        source = source.prune_units(reduce(and_, predicates)) or source
    if request.columns is not None and (existing is None or request.columns <= existing):
        names = (
            sorted(request.columns) if schema is None else [name for name in schema.names if name in request.columns]
        )
        source = source.project_columns(names) or source
    return source


def _push_to_inputs(node: PlanNode, request: PushdownRequest) -> PlanNode:
    return with_inputs(node, tuple(_push_down(part, request) for part in node.inputs))


def with_inputs(node: PlanNode, inputs: tuple[PlanNode, ...]) -> PlanNode:
    if all(one is other for one, other in zip(inputs, node.inputs, strict=True)):
        return node
    changes: dict[str, Any] = {"parts": inputs} if hasattr(node, "parts") else {"input": inputs[0]}
    return replace(node, **changes)
