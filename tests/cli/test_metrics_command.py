"""`paceline metrics`: a table with curves, CSV, Parquet and JSON of the reports that count."""

import csv
import io
import json
import math

import pytest


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_table_has_the_last_rows_and_a_curve_of_each_metric(paceline):
    out = paceline("metrics", "complete").out
    curves, _, last = out.partition("\n\n")
    assert [line.split()[0] for line in curves.splitlines()] == ["METRIC", "loss", "eval/acc"]
    assert curves.splitlines()[1].split()[1:] == ["1", "0.2", "0.2", "1", "█▃▂▁▁"]
    assert last.splitlines()[0].split() == ["step", "time", "loss", "eval/acc", "note"]
    assert [line.split()[0] for line in last.splitlines()[1:]] == ["1", "2", "3", "4", "5"]
    assert "\x1b" not in out


def test_metrics_are_chosen_by_name_and_by_pattern(paceline):
    assert list(rows(paceline("metrics", "complete", "loss", "--csv", "-").out)[0]) == [
        "step",
        "time",
        "attempt",
        "loss",
    ]
    assert list(rows(paceline("metrics", "complete", "eval/*", "--csv", "-").out)[0])[3:] == ["eval/acc"]
    ended = paceline("metrics", "complete", "los")
    assert ended.code == 2
    assert "has no metric 'los'" in ended.err
    assert "loss" in ended.err


def test_csv_has_a_row_for_each_report_that_counts(paceline, tmp_path):
    out = paceline("metrics", "complete", "--csv", "-").out
    assert [row["step"] for row in rows(out)] == ["1", "2", "3", "4", "5"]
    assert [float(row["loss"]) for row in rows(out)] == [0.1 * 10 / step for step in range(1, 6)]
    assert rows(out)[0]["note"] == "\x1b[2Jtext"
    assert paceline("metrics", "complete", "--csv", "m.csv").out == ""
    assert (tmp_path / "m.csv").read_text() == out
    assert [path.name for path in tmp_path.glob(".*.part")] == []


def test_every_takes_one_row_of_so_many(paceline):
    assert [row["step"] for row in rows(paceline("metrics", "complete", "--csv", "-", "--every", "2").out)] == [
        "1",
        "3",
        "5",
    ]


def test_parquet_has_the_same_rows_with_their_types(paceline, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert paceline("metrics", "complete", "--parquet", "m.parquet").code == 0
    table = parquet.read_table(tmp_path / "m.parquet")
    assert {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)} == {
        "step": "int64",
        "time": "double",
        "attempt": "int64",
        "loss": "double",
        "eval/acc": "double",
        "note": "string",
    }
    assert table["loss"].to_pylist() == [0.1 * 10 / step for step in range(1, 6)]
    assert paceline("metrics", "complete", "--parquet", "-").code == 2


def test_numbers_that_json_has_not_are_texts_and_floats_in_csv(run_script, paceline, tmp_path):
    source = (
        "from paceline import train\nfrom paceline.train import DataParallelTrainer, RunConfig\n"
        "def f():\n    for value in (1, float('nan'), float('inf'), 2.5):\n"
        "        train.report({'x': value, 'big': 10**30, 'step': 7, 'many': [1, 2]})\n"
        "if __name__ == '__main__':\n"
        "    DataParallelTrainer(f, run_config=RunConfig(name='odd', storage_path='odd')).fit()\n"
    )
    ended = run_script(source)
    assert ended.returncode == 0, ended.stderr
    run = str(tmp_path / "odd" / "odd")
    found = json.loads(paceline("metrics", run, "--json").out)
    assert [row["x"] for row in found["rows"]] == [1, "nan", "inf", 2.5]
    assert float(found["rows"][0]["big"]) == 1e30
    assert [row["step"] for row in found["rows"]] == [1, 2, 3, 4]
    assert {row["reported/step"] for row in found["rows"]} == {7}
    told = rows(paceline("metrics", run, "--csv", "-").out)
    assert math.isnan(float(told[1]["x"]))
    assert told[0]["reported/step"] == "7"
    assert told[0]["many"] == "[1, 2]"
    assert paceline("metrics", run, "--parquet", "odd.parquet").code == 0
    assert "nan" in paceline("metrics", run).out
