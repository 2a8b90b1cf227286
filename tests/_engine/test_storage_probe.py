"""Whether two machines see the same storage, tested with two directories in place of two machines."""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paceline._engine.ray import storage_probe
from paceline._engine.ray.storage_probe import NodeReport, ProbeQuestion, RunStorage, StorageProbe, answer_probe


@pytest.fixture
def probe(tmp_path: Path):
    (tmp_path / "run").mkdir()
    probe = StorageProbe(RunStorage(str(tmp_path / "run"), str(tmp_path / "run")))
    probe.write_question()
    yield probe
    probe.close()
    assert [*(tmp_path / "run").iterdir()] == []


def _elsewhere(question: ProbeQuestion, tmp_path: Path) -> ProbeQuestion:
    return replace(question, storage=replace(question.storage, run_path=str(tmp_path / "elsewhere")))


def test_detects_a_directory_of_the_same_name_that_is_not_shared(probe: StorageProbe, tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        assert probe.read_report(node, answer_probe(probe.question, node)) == NodeReport()
    question = _elsewhere(probe.question, tmp_path)
    assert "is missing here" in answer_probe(question, "n1")
    (tmp_path / "elsewhere").mkdir()
    assert "is missing here" in answer_probe(question, "n1")
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_detects_a_copy_whose_files_do_not_appear(probe: StorageProbe, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere")
    problem = answer_probe(_elsewhere(probe.question, tmp_path), "n1")
    assert problem == ""
    assert "did not appear" in probe.read_report("n1", problem).problem
    question = next((tmp_path / "elsewhere").rglob("driver"))
    question.write_text("of another run")
    assert "has other contents here" in answer_probe(_elsewhere(probe.question, tmp_path), "n1")


@pytest.mark.parametrize(
    ("there", "lead_s"), [(99.0, -1.0), (100.0, 0.0), (159.0, 0.0), (160.5, 0.5), (3760.0, 3600.0)]
)
def test_a_clock_is_off_only_by_what_the_round_trip_does_not_explain(there: float, lead_s: float) -> None:
    assert storage_probe.compute_clock_lead(there, asked_at=100.0, received_at=160.0) == lead_s


def test_reports_the_clock_of_a_node_with_its_answer(probe: StorageProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    here = time.time
    with monkeypatch.context() as patch:
        patch.setattr(storage_probe.time, "time", lambda: here() - 3600)
        assert answer_probe(probe.question, "n1") == ""
    report = probe.read_report("n1", "")
    assert (report.problem, round(report.clock_lead_s / 60)) == ("", -60)
    assert "node n1 is 3,600 s behind this machine's" in storage_probe.format_clock_warning("n1", report.clock_lead_s)


def test_reports_why_a_directory_cannot_be_written(probe: StorageProbe, tmp_path: Path) -> None:
    place = next((tmp_path / "run").rglob("driver")).parent
    (place / "n1").mkdir()
    assert answer_probe(probe.question, "n1").startswith("IsADirectoryError: [Errno 21]")


def test_removes_the_probe_of_a_killed_driver(probe: StorageProbe, tmp_path: Path) -> None:
    left = tmp_path / "run" / ".probe" / "older"
    left.mkdir()
    again = StorageProbe(RunStorage(str(tmp_path / "run"), str(tmp_path / "run")))
    again.write_question()
    assert not left.exists()


def test_the_error_names_nodes_location_and_solution() -> None:
    nodes = {"10.0.0.2 (abc)": "missing", "10.0.0.3 (def)": "ditto"}
    text = storage_probe.format_unshared_error(RunStorage("/data/runs/a", "/data/runs/a"), nodes)
    for part in ("/data/runs/a", "10.0.0.2 (abc)", "10.0.0.3 (def)", "NFS", "s3://"):
        assert part in text
    assert "env_vars" in storage_probe.format_unshared_error(RunStorage("s3://b/a", "/spool", "s3://b/a"), nodes)
