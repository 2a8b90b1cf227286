"""The check of a release: what must be in the archives, and that one version is stated everywhere."""

import subprocess
from pathlib import Path

import pytest

import check_release
import paceline
from paceline._core.lazy_imports import EXTRA_OF

ROOT = Path(__file__).parents[1]


def test_the_version_is_the_same_wherever_it_is_stated():
    version = check_release.read_version()
    assert version == paceline.__version__
    changelog, citation = (ROOT / "CHANGELOG.md").read_text(), (ROOT / "CITATION.cff").read_text()
    assert check_release.find_metadata_problems(version, changelog, citation) == []
    problems = check_release.find_metadata_problems("9.9.9", "# Changelog\n", citation)
    assert problems == ["CHANGELOG.md has neither [9.9.9] nor [Unreleased]", "CITATION.cff does not say version: 9.9.9"]


def test_archives_have_every_file_of_the_package_and_nothing_else():
    package = ["cli.py", "_commands/starters/torch.py.txt"]
    wheel = [*(f"paceline/{name}" for name in package), "paceline-1.0.dist-info/RECORD"]
    sdist = ["paceline-1.0/README.md", *(f"paceline-1.0/src/paceline/{name}" for name in package)]
    assert check_release.find_archive_problems(wheel, sdist, package) == []
    broken = check_release.find_archive_problems(
        [*wheel[1:], "paceline/left.py"], [*sdist[:-1], "paceline-1.0/frontend/src/app.tsx"], package
    )
    assert broken == [
        "the wheel lacks paceline/cli.py",
        "the wheel has paceline/left.py",
        "the sdist lacks src/paceline/_commands/starters/torch.py.txt",
        "the sdist has frontend/src/app.tsx",
    ]


def test_the_table_shows_which_step_failed_where_and_which_were_not_tried():
    steps = [check_release.Step("python3.11", "install", "", 1.25), check_release.Step("python3.11", "smoke", "", 2.0)]
    steps += [check_release.Step("python3.13", "install", "exit code 1", 3.0)]
    rows = [line.split() for line in check_release.format_table(steps).splitlines()]
    assert rows == [["install", "smoke"], ["python3.11", "1.2", "s", "2.0", "s"], ["python3.13", "fail"]]


def test_a_step_that_was_done_several_times_is_their_sum_and_fails_if_one_of_them_does():
    steps = [check_release.Step("python3.11 torch", "starters", "", seconds) for seconds in (1.5, 2.0)]
    steps += [check_release.Step("python3.11 jax", "starters", problem, 1.0) for problem in ("exit code 1", "")]
    rows = [line.split() for line in check_release.format_table(steps).splitlines()]
    assert rows == [["starters"], ["python3.11", "torch", "3.5", "s"], ["python3.11", "jax", "fail"]]


def test_the_lowest_versions_satisfy_all_requirements():
    versions = check_release.list_lowest_versions(["pandas>=2.10,<4", "dask[dataframe]>=2025.1", "pandas>=2.2.3"])
    assert versions == ["pandas==2.10", "dask==2025.1"]
    with pytest.raises(ValueError, match="numpy<3 has no lower bound"):
        check_release.list_lowest_versions(["numpy<3"])


def test_every_requirement_has_a_lower_bound_and_every_extra_a_module_to_import():
    requirements = check_release.read_requirements()
    for each in requirements.values():
        assert len(check_release.list_lowest_versions(each)) == len(each)
    assert requirements.keys() - {""} == set(EXTRA_OF.values())


def test_a_package_has_the_same_lower_bound_in_every_extra():
    # `paceline doctor` compares with the bound of a package, whichever extra asked for it.
    bounds = {each for group in check_release.read_requirements().values() for each in group if ">=" in each}
    lowest = check_release.list_lowest_versions(bounds)
    assert sorted(lowest) == sorted(
        {version for each in bounds for version in check_release.list_lowest_versions([each])}
    )


def test_a_command_that_fails_or_is_missing_ends_its_check(tmp_path, capsys):
    with open(tmp_path / "log", "w") as log:
        check = check_release.ReleaseCheck("no-such-python", log)
        check.run("venv", check.interpreter, "-m", "venv", cwd=tmp_path)
        check.run("install", "touch", tmp_path / "reached", cwd=tmp_path)
    assert [(step.name, step.problem) for step in check.steps] == [("venv", "cannot be started")]
    assert not (tmp_path / "reached").exists()
    assert "no-such-python" in capsys.readouterr().out


def test_a_command_that_takes_too_long_fails_and_shows_what_it_printed(tmp_path, capsys, monkeypatch):
    def run_too_long(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout, output=b"Collecting numpy\n")

    monkeypatch.setattr(subprocess, "run", run_too_long)
    with open(tmp_path / "log", "w") as log:
        check = check_release.ReleaseCheck("python3.11", log)
        check.run("install", "pip", cwd=tmp_path)
    assert [step.problem for step in check.steps] == [f"not done after {check_release.STEP_TIMEOUT_S} s"]
    assert capsys.readouterr().out.endswith("Collecting numpy\n\n")
