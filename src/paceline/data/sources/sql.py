"""The rows of an SQL query, over any DB-API 2 connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline._storage.store_errors import summarize_error
from paceline.data.block import Block, column_of
from paceline.data.planning.plan import PlainSource, Unit

_ROWS = 4096


@dataclass(frozen=True)
class SqlSource(PlainSource):
    """A query as one unit, or as several that split the rows by a hash of some columns."""

    sql: str
    connect: Callable[[], Any]
    params: Any = None
    shard_keys: tuple[str, ...] = ()
    shard_hash_fn: str = "MD5"
    num_shards: int = 1

    @property
    def name(self) -> str:
        return f"read_sql({_shorten(self.sql)!r})"

    def units(self) -> Sequence[Unit]:
        if self.num_shards == 1:
            return [SqlUnit(self.sql, self.connect, self.params, _shorten(self.sql))]
        key = self.shard_keys[0] if len(self.shard_keys) == 1 else f"CONCAT({', '.join(self.shard_keys)})"
        hashed = f"MOD(ABS({self.shard_hash_fn}({key})), {self.num_shards})"
        return [
            SqlUnit(
                f"SELECT * FROM ({self.sql}) AS T WHERE {hashed} = {index}",
                self.connect,
                self.params,
                f"{_shorten(self.sql)} (shard {index} of {self.num_shards})",
            )
            for index in range(self.num_shards)
        ]


@dataclass(frozen=True)
class SqlUnit:
    sql: str
    connect: Callable[[], Any]
    params: Any
    name: str
    num_rows: int | None = None
    num_bytes: int | None = None

    def read(self) -> Iterator[Block]:
        with contextlib.closing(self.connect()) as connection, contextlib.closing(connection.cursor()) as cursor:
            try:
                cursor.execute(self.sql) if self.params is None else cursor.execute(self.sql, self.params)
            except Exception as error:
                # Each driver has its own exceptions, which may not pickle.
                raise ValueError(f"the query failed: {summarize_error(error)}\n\nquery: {self.sql}") from error
            if cursor.description is None:
                raise ValueError(f"the query returns no rows: {self.sql}")
            names = [column[0] for column in cursor.description]
            if len(set(names)) < len(names):
                repeated = sorted({name for name in names if names.count(name) > 1})
                raise ValueError(
                    f"the query returns several columns named {', '.join(repeated)}: {self.sql}\n\n"
                    "hint: name them, as in SELECT a.id AS a_id, b.id AS b_id"
                )
            while rows := cursor.fetchmany(_ROWS):
                columns = zip(*rows, strict=True)
                yield Block({name: column_of(values) for name, values in zip(names, columns, strict=True)})


def _shorten(sql: str) -> str:
    line = " ".join(sql.split())
    return line if len(line) <= 60 else f"{line[:57]}..."
