"""The rows of queries, with a database in a file."""

import hashlib
import sqlite3

import pytest
from made_datasets import block, pipeline

from paceline.data.read import read_sql


@pytest.fixture
def connect(tmp_path):
    path = str(tmp_path / "train.db")

    def connect():
        connection = sqlite3.connect(path)
        connection.create_function("HASHED", 1, lambda key: int(hashlib.sha256(str(key).encode()).hexdigest()[:12], 16))
        connection.create_function("CONCAT", 2, lambda one, other: f"{one}|{other}")
        # Not every build of SQLite has it, and a library that brings its own may be in this process.
        connection.create_function("MOD", 2, lambda number, by: number % by)
        return connection

    connection = connect()
    with connection:
        connection.execute("CREATE TABLE movies (id INTEGER, title TEXT, score REAL, made BLOB)")
        rows = [(number, f"film {number}", None if number == 3 else number / 2, b"x") for number in range(10000)]
        connection.executemany("INSERT INTO movies VALUES (?, ?, ?, ?)", rows)
    connection.close()
    return connect


def test_the_rows_of_a_query_are_rows(connect):
    dataset = read_sql("SELECT * FROM movies WHERE id < 5 ORDER BY id;", connect)
    assert dataset._plan.name == "read_sql('SELECT * FROM movies WHERE id < 5 ORDER BY id')"
    found = block(dataset)
    assert found.columns["id"].tolist() == [0, 1, 2, 3, 4]
    assert found.columns["title"].to_pylist()[4] == "film 4"
    assert found.columns["score"].to_pylist() == [0.0, 0.5, 1.0, None, 2.0]
    assert found.columns["made"].to_pylist() == [b"x"] * 5
    chosen = "SELECT id FROM movies WHERE id < ? ORDER BY id"
    assert block(read_sql(chosen, connect, sql_params=(2,))).columns["id"].tolist() == [0, 1]
    assert block(read_sql(chosen, connect, sql_params=(0,))).num_rows == 0


@pytest.mark.parametrize("keys", [["id"], ["id", "title"]])
def test_shards_have_all_rows_once_and_a_query_without_them_is_one(connect, keys):
    query = "SELECT id, title FROM movies"
    dataset = read_sql(query, connect, shard_keys=keys, shard_hash_fn="HASHED", override_num_blocks=3)
    tasks = pipeline(dataset).tasks
    assert [task.unit.name for task in tasks] == [f"{query} (shard {number} of 3)" for number in range(3)]
    sizes = [sum(block.num_rows for block in task.unit.read()) for task in tasks]
    assert min(sizes) > 3000
    assert sorted(block(dataset).columns["id"].tolist()) == [*range(10000)]
    (whole,) = pipeline(read_sql("SELECT id FROM movies ORDER BY id", connect)).tasks
    blocks = [each.columns["id"].tolist() for each in whole.unit.read()]
    assert len(blocks) == 3, "some rows are fetched at a time"
    assert [number for numbers in blocks for number in numbers] == [*range(10000)]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT absent FROM movies", r"the query failed: .*no such column: absent(.|\n)*query: SELECT absent"),
        ("SELECT id, id FROM movies", r"several columns named id(.|\n)*hint: name them"),
        ("UPDATE movies SET id = id WHERE id < 0", "the query returns no rows: UPDATE"),
    ],
)
def test_a_query_that_cannot_be_is_shown(connect, sql, message):
    with pytest.raises(ValueError, match=message):
        block(read_sql(sql, connect))


def test_connections_are_closed_also_after_an_error(connect):
    opened = []

    def remembered():
        opened.append(connect())
        return opened[-1]

    for sql in ("SELECT id FROM movies", "SELECT absent FROM movies"):
        (task,) = pipeline(read_sql(sql, remembered)).tasks
        try:
            next(iter(task.unit.read()))
        except ValueError:
            assert "absent" in sql
    assert len(opened) == 2
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
