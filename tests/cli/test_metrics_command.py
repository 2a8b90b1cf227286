"""`paceline metrics`: CSV, Parquet and JSON of the reports that count. Its table is in test_command_line_docs.py."""

import csv
import io
import json
import math

import pytest


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_metrics_are_selected_by_name_and_by_pattern(paceline):
    assert list(rows(paceline("metrics", "resnet", "eval/*", "--csv", "-").out)[0])[3:] == ["eval/acc"]
    paceline("metrics", "resnet", "los").assert_refused("has no metric 'los'", "loss")


def test_odd_values_are_kept_in_json_csv_and_parquet(paceline, odd_run, tmp_path):
    run = str(odd_run)
    found = json.loads(paceline("metrics", run, "--json").out)["rows"]
    assert [row["x"] for row in found] == [1, "nan", "inf", 2.5, 0], "JSON has neither nan nor inf"
    assert float(found[0]["big"]) == 1e30
    assert [row["step"] for row in found] == [1, 2, 3, 4, 5]
    assert {row["reported/step"] for row in found} == {7}
    out = paceline("metrics", run, "--csv", "-").out
    assert [float(row["loss"]) for row in rows(out)] == [1.0, 0.5, 3.0, 4.0, 5.0]
    assert paceline("metrics", run, "--csv", "m.csv").out == ""
    assert (tmp_path / "m.csv").read_text() == out
    assert [path.name for path in tmp_path.glob(".*.part")] == []
    first, second, *_ = rows(out)
    assert (first["reported/step"], first["many"], first["note"]) == ("7", "[1, 2]", "\x1b[2Jtext")
    assert math.isnan(float(second["x"]))
    table = paceline("metrics", run).out
    assert next(line.split()[:5] for line in table.splitlines() if line.startswith("step")) == ["step", *"7777"]
    assert "nan" in table
    assert "\x1b" not in table
    parquet = pytest.importorskip("pyarrow.parquet")
    assert paceline("metrics", run, "--parquet", "m.parquet").code == 0
    read = parquet.read_table(tmp_path / "m.parquet")
    types = {name: str(kind) for name, kind in zip(read.schema.names, read.schema.types, strict=True)}
    assert types | {"step": "int64", "time": "double", "attempt": "int64", "x": "double", "note": "string"} == types
    assert read["loss"].to_pylist() == [1.0, 0.5, 3.0, 4.0, 5.0]
