"""Results as a table, as a page's Markdown and as plots: all from one file, and the page agrees with it."""

import importlib
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"


@pytest.fixture
def benchmarks(monkeypatch):
    """A module of benchmarks/, by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def document(benchmarks):
    figures = benchmarks("_figures")
    report = figures.Report(
        [
            figures.Measure(
                "cold start",
                "s",
                [2.0, 2.5, 3.0],
                {"torchrun": [4.0, 5.0, 6.0], "Ray Train": [20.0]},
                figures.Bar("<=", 0.6, ratio=True),
                {"import torch": [1.5]},
            ),
            figures.Measure("rows", "/s", [3e6], {"plain": [2e6]}, figures.Bar(">=", 0.9, ratio=True)),
        ],
        {"processor time": "3 s"},
        [
            figures.Curve(
                "fit() by workers",
                "s",
                "workers",
                {1: [0.05, 0.06], 4: [0.1], 16: [0.3]},
                {"torchrun": {1: [3.0], 4: [5.0]}},
                {"fork": {1: [0.01], 16: [0.02]}},
                figures.Bar("<=", 8),
            )
        ],
    )
    return {
        "date": "2026-11-16T04:00:00+0000",
        "command": "python benchmarks/all.py",
        "commit": "0123456789ab",
        "machine": {
            "system": "Linux 6",
            "processor": "two of them",
            "cores": 2,
            "memory_gb": 24,
            "filesystem": "ext4",
            "load_average": [0.1, 0.1, 0.1],
        },
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "peers": {"ray": {"ray": "2.58.0"}},
        "without": ["lightning"],
        "took_s": {"cold_start": 60.0},
        "total_s": 60.0,
        "failed": {},
        "benchmarks": {"cold_start": {"question": "cold start", "peers": {}, **report.as_json()}},
    }


def test_results_are_the_same_after_json(benchmarks, document):
    figures = benchmarks("_figures")
    data = document["benchmarks"]["cold_start"]
    again = figures.Report.from_json(json.loads(json.dumps(data)))
    assert again.as_json() == {name: data[name] for name in ("measures", "curves", "notes")}


def test_a_ratio_has_the_spread_of_both_sides(benchmarks):
    ratio = benchmarks("_figures").Ratio.of([2.0, 2.5, 3.0], [4.0, 5.0, 6.0])
    assert str(ratio) == "0.5 [0.333 .. 0.75]"


def test_the_table_has_a_line_for_each_peer_and_the_ends_of_each_curve(benchmarks, document):
    table = benchmarks("table")
    rows = table.rows(document)
    assert rows[0] == (
        "cold start",
        "2.5 s [2 .. 3]",
        "import torch 1.5 s",
        "torchrun 5 s [4 .. 6]",
        "0.5 [0.333 .. 0.75]",
        "ratio <= 0.6",
        "met",
    )
    assert rows[1] == ("", "", "", "Ray Train 20 s", "0.125 [0.1 .. 0.15]", "", "")
    assert rows[2][4:] == ("1.5", "ratio >= 0.9", "met")
    assert [row[0] for row in rows[3:]] == [
        "fit() by workers, workers 1",
        "fit() by workers, workers 4",
        "fit() by workers, workers 16",
        "fit() by workers, growth",
    ]
    assert rows[-1][1:] == ("from 1 to 16: 5.45 [5 .. 6] x", "", "", "", "growth <= 8", "met")
    text = table.terminal(document)
    assert "LEFT OUT: lightning" in text
    assert "ray: ray 2.58.0" in text


def test_the_markdown_goes_between_the_markers_of_a_page_and_names_its_file(benchmarks, document):
    table = benchmarks("table")
    text = table.markdown(document)
    page = "before\n<!-- results: old.json -->\nold\n<!-- end of results -->\nafter\n"
    again = table.put_into(page, "new.json", text)
    assert again == f"before\n<!-- results: new.json -->\n{text}\n<!-- end of results -->\nafter\n"
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {8}
    with pytest.raises(ValueError, match="0 places"):
        table.put_into("no markers", "new.json", text)


def test_the_page_says_what_its_file_says(benchmarks):
    table = benchmarks("table")
    page = PAGE.read_text()
    [file] = [match["file"] for match in table.MARKED.finditer(page)]
    text = table.NOT_YET if file == "none" else table.markdown(json.loads((ROOT / file).read_text()))
    assert table.put_into(page, file, text) == page, f"run python benchmarks/table.py {file}"


def test_plots_are_small_and_the_same_every_time(benchmarks, document, tmp_path):
    plots = benchmarks("plots")
    first = plots.plotted(document, tmp_path / "first")
    second = plots.plotted(document, tmp_path / "second")
    assert [path.name for path in first] == ["bench-ratios.svg", "bench-cold-start.svg"]
    assert [path.name for path in first] == list(benchmarks("table").plots_of(document))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.stat().st_size < 60_000
        assert ET.parse(one).getroot().tag.endswith("svg")
    assert "torchrun" in first[1].read_text()


def test_the_readme_says_what_its_file_says(benchmarks):
    short_table = benchmarks("short_table")
    page = (ROOT / "README.md").read_text()
    [file] = [match["file"] for match in short_table.MARKED.finditer(page)]
    text = short_table.markdown(json.loads((ROOT / file).read_text()), file)
    assert short_table.put_into(page, file, text) == page, f"run python benchmarks/short_table.py {file}"
