"""The same rows for less: a plan as it is run.

Readers are told which columns are asked for and which rows will be dropped anyway, and a limit goes before what gives a
row for each row. Only transforms that can be looked into are passed on the way down: what a user's function needs is
its own affair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

from paceline.data.barriers import GroupBy, Materialize, RandomShuffle, Repartition, Sliced, Sort
from paceline.data.expressions import Expr, renamed
from paceline.data.plan import Map, Node, Read, Reorder, Union
from paceline.data.source import Source
from paceline.data.transform import Transform
from paceline.data.transforms.columns import Drop, Rename, RenameAll, Select, Where, WithColumn
from paceline.data.transforms.sample import LimitRows, RandomSample


@dataclass(frozen=True)
class Asked:
    """What is asked of the rows of a node by those above it."""

    columns: frozenset[str] | None = None
    """None: all."""
    predicates: tuple[Expr, ...] = ()
    """A row for which one of them does not hold is dropped later."""

    def and_columns(self, *names: str) -> Asked:
        return self if self.columns is None else replace(self, columns=self.columns | {*names})


def optimized(plan: Node) -> Node:
    return _pushed(_limited_early(plan), Asked())


def known_columns(node: Node) -> tuple[str, ...] | None:
    """The columns of a node's rows, where that can be told without reading any."""
    types = known_types(node)
    return None if types is None else tuple(types)


def known_types(node: Node) -> dict[str, Any] | None:
    """The columns of a node's rows and their types, where that can be told without reading any; the type of a column
    that is computed is None."""
    match node:
        case Read(source=source):
            schema = source.schema()
            return None if schema is None else dict(zip(schema.names, schema.types, strict=True))
        case Map(input=below, transform=transform):
            types = known_types(below)
            return None if types is None else _changed(types, transform)
        case Reorder() | RandomShuffle() | Sort() | Repartition() | Sliced() | Materialize():
            return known_types(node.inputs[0])
        case Union(parts=(first, *others)):
            types = known_types(first)
            return types if all(known_types(other) == types for other in others) else None
    return None


def _changed(types: dict[str, Any], transform: Transform) -> dict[str, Any] | None:
    match transform:
        case Select(columns=columns) if {*columns} <= {*types}:
            return {name: types[name] for name in columns}
        case Drop(columns=gone) if {*gone} <= {*types}:
            return {name: kind for name, kind in types.items() if name not in gone}
        case Rename(names=names) if {*names} <= {*types}:
            return {names.get(name, name): kind for name, kind in types.items()}
        case RenameAll(columns=columns) if len(columns) == len(types):
            return dict(zip(columns, types.values(), strict=True))
        case WithColumn(column=column):
            return {**types, column: None}
        case Where() | RandomSample() | LimitRows():
            return types
    return None


def _limited_early(node: Node) -> Node:
    """Limits before the transforms that give a row for each row: those need not see the others."""
    if isinstance(node, Sliced) and isinstance(node.input, Map) and node.input.transform.keeps_rows:
        above = node.input
        return replace(above, input=_limited_early(replace(node, input=above.input)))
    return with_inputs(node, tuple(map(_limited_early, node.inputs)))


def _pushed(node: Node, asked: Asked) -> Node:
    match node:
        case Read(source=source):
            narrower = _read(source, asked)
            return node if narrower is source else Read(narrower)
        case Map(input=below):
            return _through(node, below, asked)
        case Reorder() | Union():
            return _below(node, asked)
        case RandomShuffle() | Repartition() | Sliced() | Materialize():
            # Which rows there are decides where each of them goes: they cannot be dropped before.
            return _below(node, Asked(asked.columns))
        case Sort(keys=keys):
            return _below(node, Asked(asked.columns).and_columns(*keys))
        case GroupBy(keys=keys, aggregates=aggregates):
            columns = [getattr(one, "on", None) for one in aggregates]
            return _below(node, Asked(frozenset((*keys, *map(str, columns))) if all(columns) else None))
    return _below(node, Asked())


def _through(node: Map, below: Node, asked: Asked) -> Node:
    match node.transform:
        case Select(columns=columns):
            if _is_covered(columns, below):
                return _through(replace(node, input=below.inputs[0]), below.inputs[0], asked)
            return _below(node, replace(asked, columns=frozenset(columns)))
        case Drop(columns=gone):
            there = known_columns(below)
            if there is not None and {*gone} < {*there}:
                kept = Select(tuple(name for name in there if name not in gone))
                return _through(replace(node, transform=kept), below, asked)
            return _below(node, asked.and_columns(*gone))
        case Rename() as rename:
            return _renamed(node, below, rename, asked)
        case RenameAll(columns=columns):
            there = known_columns(below)
            if there is None or len(there) != len(columns):
                return _below(node, Asked())
            pairs = tuple((old, new) for old, new in zip(there, columns, strict=True) if old != new)
            return _renamed(replace(node, transform=Rename(pairs)), below, Rename(pairs), asked)
        case WithColumn(column=column, expr=expr):
            predicates = tuple(one for one in asked.predicates if column not in one.columns())
            needed = None if asked.columns is None else (asked.columns - {column}) | expr.columns()
            return _below(node, Asked(needed, predicates))
        case Where(expr=expr):
            return _below(node, replace(asked, predicates=(*asked.predicates, expr)).and_columns(*expr.columns()))
        case RandomSample() | LimitRows():
            return _below(node, Asked(asked.columns))
    return _below(node, Asked())


def _renamed(node: Map, below: Node, rename: Rename, asked: Asked) -> Node:
    there = known_columns(below)
    changed = None if there is None else [rename.names.get(name, name) for name in there]
    if there is None or changed is None or not {*rename.names} <= {*there} or len({*changed}) < len(changed):
        return _below(node, Asked())  # what is wrong with the names must still be found out
    old_names = {new: old for old, new in rename.pairs}
    predicates = tuple(renamed(one, old_names) for one in asked.predicates)
    if asked.columns is None or not asked.columns <= {*changed}:
        return _below(node, Asked(None, predicates))
    needed = tuple(old for old, new in zip(there, changed, strict=True) if new in asked.columns)
    pairs = tuple((old, new) for old, new in rename.pairs if new in asked.columns)
    selected = Map(below, Select(needed))
    return replace(node, transform=Rename(pairs), input=_through(selected, below, Asked(None, predicates)))


def _is_covered(columns: tuple[str, ...], below: Node) -> bool:
    """Whether what is below is another selection, which has all these columns and is not in error itself."""
    if not isinstance(below, Map) or not isinstance(below.transform, Select):
        return False
    there = known_columns(below.input)
    return there is not None and {*columns} <= {*below.transform.columns} <= {*there}


def _read(source: Source, asked: Asked) -> Source:
    if asked.columns is None and not asked.predicates:
        return source
    schema = source.schema()
    there = None if schema is None else {*schema.names}
    # A column that is not there is an error where it is asked for, which names those that are.
    predicates = [one for one in asked.predicates if there is None or one.columns() <= there]
    if predicates:
        source = source.pruned(reduce(and_, predicates)) or source
    if asked.columns is not None and (there is None or asked.columns <= there):
        names = sorted(asked.columns) if schema is None else [name for name in schema.names if name in asked.columns]
        source = source.projected(names) or source
    return source


def _below(node: Node, asked: Asked) -> Node:
    return with_inputs(node, tuple(_pushed(part, asked) for part in node.inputs))


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same node over other inputs."""
    if all(one is other for one, other in zip(inputs, node.inputs, strict=True)):
        return node
    changes: dict[str, Any] = {"parts": inputs} if hasattr(node, "parts") else {"input": inputs[0]}
    return replace(node, **changes)
