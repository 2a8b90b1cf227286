"""Results as a table, as a page's Markdown and as plots: all from one file, and the pages agree with it."""

import importlib
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    """A module of benchmarks/, by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_the_pages_state_what_their_files_state(benchmarks):
    table, short_table = benchmarks("table"), benchmarks("short_table")
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    [file] = [match["file"] for match in table.MARKERS.finditer(page)]
    text = table.NOT_YET if file == "none" else table.format_markdown(json.loads((ROOT / file).read_text()), file)
    assert table.insert_table(page, file, text) == page, f"run python benchmarks/table.py {file}"
    page = (ROOT / "README.md").read_text()
    [file] = [match["file"] for match in short_table.MARKERS.finditer(page)]
    text = short_table.format_markdown(json.loads((ROOT / file).read_text()), file)
    assert short_table.insert_table(page, file, text) == page, f"run python benchmarks/short_table.py {file}"


def test_plots_are_the_same_every_time(benchmarks, tmp_path):
    document = json.loads(max((ROOT / "benchmarks" / "results").glob("*-two-cores.json")).read_text())
    document["benchmarks"] = {name: document["benchmarks"][name] for name in ("cold_start", "growth_workers")}
    first, second = (benchmarks("plots").write_plots(document, tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == list(benchmarks("table").plot_titles(document))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert ET.parse(one).getroot().tag.endswith("svg")
