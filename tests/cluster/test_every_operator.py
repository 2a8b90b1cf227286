"""Every operator on a cluster gives the rows of one machine, in the same order."""

import asyncio
import os
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.concurrent import ExecutorFactory

import paceline.data as data
from paceline.data import ActorPoolStrategy, Dataset, Datasink
from paceline.data import aggregate as agg
from paceline.data import preprocessors as pre
from paceline.data.context import DataContext
from paceline.data.datatype import DataType
from paceline.data.exec import service
from paceline.data.expressions import col, download, lit, monotonically_increasing_id, random, udf, uuid, when

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # The nodes cannot import this file.
FORMATS = ("numpy", "pandas", "pyarrow")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def context() -> Iterator[DataContext]:
    before, DataContext._current = DataContext._current, DataContext()
    yield DataContext._current
    DataContext._current = before
    service.shutdown()


def make_rows() -> Dataset:
    def columns(batch: dict[str, Any]) -> dict[str, Any]:
        ids = batch["id"]
        return {
            "id": ids,
            "k": ids * 7 % 5,
            "x": np.where(ids % 9 == 0, np.nan, (ids * 37 % 101) / 4),
            "text": pa.array([None if n % 11 == 0 else f"t{n % 6}" for n in ids.tolist()]),
            "list": pa.array([[n, n + 1][: n % 3] for n in ids.tolist()]),
            "tensor": np.stack([ids, ids + 1], 1),
        }

    return data.range(90, override_num_blocks=4).map_batches(columns)


class Product(agg.AggregateFnV2):
    def __init__(self, on: str) -> None:
        super().__init__(f"product({on})", lambda: 1, on=on, ignore_nulls=False)

    def aggregate_block(self, block: Any) -> Any:
        return pc.product(pc.cast(pc.add(pc.bit_wise_and(block[self.on], 1), 1), pa.float64())).as_py()

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        return current_accumulator * new


AGGREGATES: list[agg.AggregateFn] = [
    Product("id"),
    agg.AsList("id"),
    agg.ValueCounter("text"),
    agg.MissingValuePercentage("x"),
    agg.ZeroPercentage("x"),
    agg.ApproximateQuantile("x", quantiles=[0.1, 0.5]),
    agg.ApproximateTopK("text", k=3),
    agg.Unique("text"),
    agg.Count(),
    agg.Std("x"),
    agg.Quantile("x"),
    agg.Mean("id"),
]


def shift_group(group: Any) -> Any:
    if isinstance(group, pa.Table):
        return group.select(["k", "id"]).slice(1)
    if isinstance(group, dict):
        return {"k": group["k"][:1], "sum": group["id"].sum()[None]}
    return group[["k", "id"]].head(2)


async def wait_and_double(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.001 * (row["id"] % 3))
    return {"id": row["id"] * 2}


async def repeat(row: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for number in range(row["id"] % 3):
        await asyncio.sleep(0)
        yield {"id": row["id"], "number": number}


class Halves:
    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        half = len(batch["id"]) // 2
        for part in (slice(None, half), slice(half, None)):
            await asyncio.sleep(0.001)
            yield {"id": batch["id"][part]}


@udf(return_dtype=DataType.int64())
def triple(values: Any) -> Any:
    return pc.multiply(values, 3)


def with_paths(batch: dict[str, Any], path: str) -> dict[str, Any]:
    return {"id": batch["id"], "uri": np.array([path] * len(batch["id"]))}


DATASETS: dict[str, Callable[[Dataset], Dataset]] = {
    "sort": lambda ds: ds.sort(["k", "x"], descending=[True, False]),
    "sort by text": lambda ds: ds.sort("text", descending=True),
    "sort with boundaries": lambda ds: ds.sort(["x", "id"], boundaries=[5, 12.5]),
    "aggregates": lambda ds: ds.groupby("k").aggregate(*AGGREGATES),
    "aggregates by two keys": lambda ds: ds.groupby(["text", "k"], num_partitions=3).aggregate(*AGGREGATES[:4]),
    **{
        f"map_groups {form}": lambda ds, form=form: ds.groupby("k").map_groups(shift_group, batch_format=form)
        for form in FORMATS
    },
    "train": lambda ds: ds.streaming_train_test_split(0.3, seed=2)[0],
    "test": lambda ds: ds.streaming_train_test_split(0.3, split_type="hash", hash_column="text", seed=2)[1],
    "expressions": lambda ds: ds.with_columns(
        {"id3": triple(col("id")), "w": when(col("x") > 5, lit("a")).otherwise("b"), "len": col("list").list.len()}
    ),
    "row places": lambda ds: data.range(60, override_num_blocks=4).with_columns(
        {"n": monotonically_increasing_id(), "r": random(seed=3), "u": uuid()}
    ),
    "async map": lambda ds: ds.map(wait_and_double),
    "async generator": lambda ds: ds.flat_map(repeat),
    "async class": lambda ds: ds.map_batches(
        Halves, batch_size=7, compute=ActorPoolStrategy(size=1, max_concurrent_calls_per_actor=4)
    ),
    "generator": lambda ds: ds.flat_map(lambda row: ({"id": row["id"], "n": n} for n in range(row["id"] % 3))),
    "random_shuffle": lambda ds: ds.random_shuffle(seed=4, num_blocks=3),
    "repartition": lambda ds: ds.repartition(3),
    "repartition with shuffle": lambda ds: ds.repartition(3, shuffle=True),
    "repartition by rows": lambda ds: ds.repartition(target_num_rows_per_block=13),
    "repartition by keys": lambda ds: ds.repartition(3, keys=["text", "k"], sort=True),
    "join": lambda ds: ds.join(ds.filter(expr="id > 50"), "full_outer", on="k", left_suffix="_l", right_suffix="_r"),
    "mix": lambda ds: ds.mix(ds.filter(expr="id > 50"), weights=[2, 1]),
    "zip": lambda ds: ds.zip(ds.sort("id", descending=True)),
    "union": lambda ds: ds.union(ds.limit(7)).randomize_block_order(seed=1),
    "sample": lambda ds: ds.random_sample(0.4, seed=5),
    "materialize": lambda ds: ds.materialize().filter(expr="k == 2"),
    "split": lambda ds: ds.split(3)[1],
    "stratified": lambda ds: ds.train_test_split(0.2, stratify="text", shuffle=True, seed=1)[1],
}

VALUES: dict[str, Callable[[Dataset], Any]] = {
    "summary": lambda ds: ds.summary(["id", "x", "text", "list"]).to_pandas().astype(str).to_dict(),
    "unique": lambda ds: sorted(ds.unique("text", ignore_nulls=True)),
    "aggregate": lambda ds: ds.aggregate(*AGGREGATES),
    "count": lambda ds: ds.filter(lambda row: row["id"] % 2).count(),
    "schema": lambda ds: str(ds.groupby("k").mean("x").schema()),
    "epochs": lambda ds: _epochs(ds.random_shuffle(seed=1)),
    "fit": lambda ds: (
        pre.Chain(
            pre.SimpleImputer(["x"]), pre.StandardScaler(["x"]), pre.RobustScaler(["id"]), pre.OneHotEncoder(["k"])
        )
        .fit_transform(ds)
        .take_all()
    ),
}


def _epochs(ds: Dataset) -> Any:
    iterator = ds.iterator()
    return [[batch["id"].tolist() for batch in iterator.iter_batches(batch_size=16)] for _ in range(2)]


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(each) for each in value]
    return "nan" if isinstance(value, float) and np.isnan(value) else value


def quick(names: Iterable[str], *chosen: str) -> list[Any]:
    """The others are slow together: there are many."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in names]


def on_both(compute: Callable[[], Any], context: DataContext, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The result here, and the result on the cluster."""
    context.target_max_block_size = 2000
    results = []
    for engine, inline_below in (("local", 1 << 30), ("ray", 0)):
        monkeypatch.setenv("PACELINE_ENGINE", engine)
        context.inline_below = inline_below
        results.append(plain(compute()))
    here, there = results
    return here, there


@pytest.mark.parametrize("name", quick(DATASETS, "sort with boundaries", "aggregates", "random_shuffle"))
def test_rows_and_their_order_are_those_of_one_machine(
    name: str, context: DataContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = on_both(lambda: DATASETS[name](make_rows()).take_all(), context, monkeypatch)
    assert there == here
    assert here, "a test of no rows shows nothing"


class Listed(Datasink[Any]):
    """Writes a file for each unit, and returns its place."""

    def __init__(self, path: Path) -> None:
        self.path, self.numbers = path, []

    def write(self, blocks: Any, ctx: Any) -> int:
        (self.path / f"{ctx.task_idx}").write_bytes(pickle.dumps([table.to_pylist() for table in blocks]))
        return ctx.task_idx

    def on_write_complete(self, write_result: Any) -> None:
        (self.path / "all").write_text(f"{write_result.write_returns} {write_result.num_rows}")


def write_to_datasink(ds: Dataset, path: Path) -> Any:
    ds.repartition(4).write_datasink(Listed(path))
    return [(path / "all").read_text(), *(pickle.loads((path / f"{n}").read_bytes()) for n in range(4))]


def write_iceberg(ds: Dataset, path: Path) -> Any:
    catalog = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}
    tables = load_catalog("here", **catalog)
    tables.create_namespace("space")
    types = [("id", pa.int64()), ("k", pa.int64()), ("x", pa.float64()), ("text", pa.string())]
    tables.create_table("space.rows", schema=pa.schema(types))
    ds.write_iceberg("space.rows", {"name": "here", **catalog})
    rows = data.read_iceberg(table_identifier="space.rows", catalog_kwargs={"name": "here", **catalog}).take_all()
    ExecutorFactory.get_or_create().shutdown()  # Pyiceberg keeps threads for good.
    ExecutorFactory._instance = None
    return rows


def write_delta(ds: Dataset, path: Path) -> Any:
    ds.write_delta(str(path / "rows"))
    return sorted(data.read_delta(str(path / "rows")).take_all(), key=lambda row: row["id"])  # Its files have no order.


def download_texts(ds: Dataset, path: Path) -> Any:
    (path / "text").write_text("words")
    uris = data.range(20, override_num_blocks=3).map_batches(with_paths, fn_args=(str(path / "text"),))
    return uris.with_column("bytes", download("uri")).drop_columns(["uri"]).take_all()


def pack_documents(ds: Dataset, path: Path) -> Any:
    """The pipeline of the example."""
    sys.path.append(str(EXAMPLES))
    try:
        import tokenize_text
    finally:
        sys.path.remove(str(EXAMPLES))
    cloudpickle.register_pickle_by_value(tokenize_text)
    files = tokenize_text.text_at(path / "text", 200)
    return tokenize_text.rows_of(files, tokenize_text.tokenizer_at(path / "tokenizer.json", files), 32).take_all()


def write_and_read(form: str) -> Callable[[Dataset, Path], Any]:
    def write(ds: Dataset, path: Path) -> Any:
        getattr(ds, f"write_{form}")(str(path / "rows"))
        names = sorted(each.name for each in (path / "rows").glob("part-*"))
        return names, getattr(data, f"read_{form}")(str(path / "rows")).take_all()

    return write


FLAT = ["id", "k", "x", "text"]
WRITES: dict[str, Callable[[Dataset, Path], Any]] = {
    **{form: write_and_read(form) for form in ("parquet", "csv", "json", "orc", "lance")},
    "delta": write_delta,
    "iceberg": write_iceberg,
    "datasink": write_to_datasink,
    "download": download_texts,
    "packing": pack_documents,
}


@pytest.mark.parametrize("name", quick(WRITES, "parquet", "datasink"))
def test_files_and_tables_are_those_of_one_machine(
    name: str, context: DataContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def write() -> Any:
        path = tmp_path / os.environ["PACELINE_ENGINE"]
        path.mkdir()
        return WRITES[name](make_rows().select_columns(FLAT).sort("x"), path)

    here, there = on_both(write, context, monkeypatch)
    assert there == here


def test_a_dataset_runs_on_the_cluster_that_ray_is_connected_to(context: DataContext) -> None:
    context.inline_below = 0

    def where(batch: dict[str, Any]) -> dict[str, Any]:
        return {"process": np.full(len(batch["id"]), os.getppid())}

    ds = data.range(40, override_num_blocks=4).map_batches(where)
    [raylet] = {psutil.Process(row["process"]).name() for row in ds.take_all()}
    assert raylet == "raylet"
    assert "4 units" in ds.stats()


@pytest.mark.parametrize("name", quick(VALUES, "summary"))
def test_values_are_those_of_one_machine(name: str, context: DataContext, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = on_both(lambda: VALUES[name](make_rows()), context, monkeypatch)
    assert there == here
