"""The pages that follow one report and one row through the code list exactly the files they pass.

One run is traced in driver, worker and data process. A file is on the way if one of its functions is handed the report
or the row, or hands it on: as an argument, as a result, or in a message that says where it is.
"""

import contextlib
import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline import train
from paceline.data import ExecutionOptions, ExecutionResources
from paceline.train import DataConfig, DataParallelTrainer, RunConfig, ScalingConfig

PACKAGE = f"{Path(paceline.__file__).parent}/"
CONCEPTS = Path(__file__).parents[2] / "docs" / "concepts"
MAX_WRAPPERS = 5


def is_report(value: Any) -> bool:
    from paceline._engine.messages import Reported

    if isinstance(value, bytes):
        # As it travels: the source of this function, which is stored too, spells it differently.
        return msgspec.json.encode({"journey_loss": 0.1})[1:-1] in value
    return isinstance(value, Reported) or (isinstance(value, dict) and "journey_loss" in value)


def is_rows(value: Any) -> bool:
    from paceline.data.block import Block
    from paceline.data.exec import messages, packed_blocks, schedule_state
    from paceline.data.order.batch_cutter import WorkerBatch
    from paceline.data.order.sharding import RowDelivery

    rows = (Block, RowDelivery, WorkerBatch, packed_blocks.BlockWriter, np.ndarray, pa.Table, pa.ChunkedArray)
    places = (packed_blocks.BlockLayout, messages.BlockWritten, messages.BlockAnnounced, schedule_state.AnnounceBlock)
    return isinstance(value, (*rows, *places))


def make_tracer(log: Path, is_traveller: Callable[[Any], bool]) -> Callable[..., None]:
    """A profile function that notes the functions that get or return a traveller."""
    noted: set[Any] = set()

    def carries(value: Any) -> bool:
        parts = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
        return is_traveller(value) or any(map(is_traveller, parts))

    def trace(frame: Any, event: str, value: Any) -> None:
        code = frame.f_code
        if code in noted or event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [value] if event == "return" else [frame.f_locals.get(name) for name in arguments]
        if any(map(carries, values)) and not any(caller.f_code.co_name == "on_event" for caller in callers(frame)):
            noted.add(code)
            with log.open("a") as lines:
                lines.write(f"{code.co_filename.removeprefix(PACKAGE)}\t{code.co_qualname}\n")

    return trace


def make_wrapper_tracer(log: Path) -> Callable[..., None]:
    """A profile function that notes which objects lie between the train function and the socket."""

    def trace(frame: Any, event: str, value: Any) -> None:
        if event == "c_call" and value.__name__ == "recvmsg" and not log.exists():
            above = itertools.takewhile(lambda caller: caller.f_code.co_name != "train_traced", callers(frame))
            objects = [caller.f_locals["self"] for caller in above if "self" in caller.f_locals]
            names = {id(each): type(each).__name__ for each in objects}
            if "BatchCutter" in names.values():  # else a question about the dataset
                log.write_text(" ".join(names.values()))

    return trace


def callers(frame: Any) -> Iterator[Any]:
    """The frame, and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@contextlib.contextmanager
def tracing(*tracers: Callable[..., None]) -> Iterator[None]:
    def trace(frame: Any, event: str, value: Any) -> None:
        for each in tracers:
            each(frame, event, value)

    before = sys.getprofile()
    sys.setprofile(trace)
    threading.setprofile(trace)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def train_traced(config: dict[str, Any]) -> None:
    logs = config["logs"]
    shard = train.get_dataset_shard("train")
    tracers = make_tracer(logs / "row", is_rows), make_tracer(logs / "report", is_report)
    with tracing(*tracers, make_wrapper_tracer(logs / "wrappers")):
        for batch in shard.iter_batches(batch_size=150):
            assert len(batch["x"])
        train.report({"journey_loss": 0.1})


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A traced run: what each tracer noted, as files."""
    root = tmp_path_factory.mktemp("journeys")
    logs, files = root / "logs", [str(root / f"{number}.parquet") for number in range(4)]
    logs.mkdir()
    for file in files:
        pq.write_table(pa.table({"x": np.arange(1000)}), file)

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        if sys.getprofile() is None:  # the first call: what follows in this data process is traced
            sys.setprofile(make_tracer(logs / "row", is_rows))
        return {"x": batch["x"] * 2}

    with tracing(make_tracer(logs / "row", is_rows), make_tracer(logs / "report", is_report)):
        result = DataParallelTrainer(
            train_traced,
            train_loop_config={"logs": logs},
            datasets={"train": paceline.data.read_parquet(files).map_batches(double)},
            dataset_config=DataConfig(execution_options=ExecutionOptions(ExecutionResources(cpu=1))),
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(storage_path=str(root / "runs"), name="journey"),
        ).fit()
    assert result.metrics["journey_loss"] == 0.1
    return logs


@pytest.mark.parametrize(
    ("page", "traveller", "most"), [("journey.md", "report", 12), ("journey-of-a-row.md", "row", 18)]
)
def test_a_page_lists_the_files_on_the_way_and_they_are_few(logs: Path, page: str, traveller: str, most: int) -> None:
    way: dict[str, list[str]] = {}
    for line in (logs / traveller).read_text().splitlines():
        file, function = line.split("\t")
        way.setdefault(file, []).append(function)
    for file, functions in way.items():
        print(f"{file}: {', '.join(dict.fromkeys(functions))}")
    section = (CONCEPTS / page).read_text().partition("\n## The files on the way\n")[2].partition("\n## ")[0]
    listed = re.findall(r"\]\(\.\./\.\./src/paceline/([\w/.]+)\)", section)
    assert sorted(listed) == sorted(way)
    assert len(listed) <= most


def test_few_objects_lie_between_the_train_function_and_the_socket(logs: Path) -> None:
    wrappers = (logs / "wrappers").read_text().split()
    assert wrappers == ["ServiceConnection", "RemoteFeeds", "BatchCutter", "EpochIterator"]
    assert len(wrappers) <= MAX_WRAPPERS
    page = (CONCEPTS / "journey-of-a-row.md").read_text()
    assert all(f"`{wrapper}`" in page for wrapper in wrappers)
