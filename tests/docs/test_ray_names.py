"""The tables of docs/guides/ray-names.md hold: against the installed Ray on one side, against us on the other.

A name or an argument that a newer Ray adds, or that we add or take away, fails here until the table says so.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "ray-names.md"
READER = Path(__file__).parent / "ray_and_ours.py"

RE_EXPORTED = {
    "ray.air.session": "get_accelerator get_checkpoint get_dataset_shard get_experiment_name get_local_rank "
    "get_local_world_size get_metadata get_node_rank get_run_id get_session get_storage get_trial_dir get_trial_id "
    "get_trial_name get_trial_resources get_world_rank get_world_size report"
}
"""Of modules that do not say what they export and define nothing: what users call in them."""

OF_RAY_ITSELF = {
    "ray.train": "base_trainer constants context examples huggingface session trainer utils v2",
    "ray.train.v2": "api examples horovod lightgbm tensorflow torch xgboost",
    "ray.tune": "analysis automl cli constants context examples execution experimental impl progress_reporter "
    "resources result result_grid syncer tune tune_config tuner integration",
    "ray.tune.search": "basic_variant concurrency_limiter repeater sample search_algorithm search_generator searcher "
    "util variant_generator",
    "ray.tune.integration": "",
}
"""Modules that have no table: what users import of them is in another one, or nothing is meant for users."""

METHODS = ("ray.data.Dataset", "ray.data.DataIterator")
"""Classes that have a table for their methods."""

HIDDEN = "an object"
"""A default that cannot be compared."""

Surface = dict[str, Any]


@dataclasses.dataclass
class Row:
    names: list[str]
    here: list[str]
    kind: str
    text: str


@dataclasses.dataclass
class Section:
    title: str
    modules: list[str]
    """Of Ray."""
    ours: str
    prose: str
    """Holds for all rows."""
    rows: list[Row]

    def says(self, row: Row, name: str) -> bool:
        return names(row.text, name) or names(self.prose, name)


def names(text: str, name: str) -> bool:
    """Whether a text has a name in a piece of code."""
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code) for code in re.findall(r"`([^`]+)`", text))


def sections(page: str) -> list[Section]:
    found = []
    for part in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        title, _, rest = re.split(r"^## ", part, flags=re.MULTILINE)[0].partition("\n")
        lines = rest.splitlines()
        prose = "\n".join(line for line in lines if not line.startswith("|"))
        rows = [line for line in lines if line.startswith("|")][2:]
        modules = [title] if title.startswith("ray.") else re.findall(r"`(ray\.[\w.]+)`", re.split(r"\.\s", prose)[0])
        ours = re.search(r"(?:Here:|There is no) `(paceline[\w.]*)`", prose)
        found.append(Section(title, modules, ours[1] if ours else "", prose, [_row(line) for line in rows]))
    return found


def _row(line: str) -> Row:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    assert len(cells) == 4, f"a row must have four cells: {line}"
    mentioned = re.findall(r"`([^`]+)`", cells[0])
    return Row(mentioned, re.findall(r"`([^`]+)`", cells[1]) or mentioned, cells[2], cells[3])


def counterpart(section: Section) -> str:
    return section.ours or section.modules[0].replace("ray.", "paceline.", 1)


def wrong_names(section: Section, ray: Surface) -> list[str]:
    """Names of Ray's that no row has, and names of rows that Ray has not."""
    listed = [name for row in section.rows for name in row.names]
    missing = [f"{section.title}: {name} has no row" for name in sorted(set(ray) - set(listed))]
    stale = [f"{section.title}: Ray has no {name}" for name in sorted(set(listed) - set(ray))]
    twice = [f"{section.title}: {name} is there twice" for name in sorted({n for n in listed if listed.count(n) > 1})]
    return missing + stale + twice


def wrong_kinds(section: Section, ours: Surface | None) -> list[str]:
    """Rows of what is there that is not, and the other way round."""
    found = []
    for row in section.rows:
        if row.kind not in ("same", "different", "not there"):
            found.append(f"{section.title}: {row.names} is {row.kind!r}, and must be same, different or not there")
        for name in row.here:
            if (row.kind != "not there") != (name in (ours or {})):
                found.append(f"{section.title}: {name} is {'' if name in (ours or {}) else 'not '}there")
        if row.kind == "not there" and not row.text:
            found.append(f"{section.title}: {row.names}: what to use instead?")
    return found


def wrong_arguments(section: Section, ray: Surface, ours: Surface) -> list[str]:
    """What differs in arguments and members and is not said; rows that are "same" may differ only as the prose says."""
    found = []
    for row in section.rows:
        for name, here in zip(row.names, row.here, strict=True):
            if row.kind == "not there" or name not in ray or here not in ours:
                continue
            for said, differs in differences(row.text, ray[name], ours[here]):
                if not section.says(row, said):
                    found.append(f"{section.title}: {name}: {differs}")
                elif row.kind == "same" and not differs.endswith("is ours") and not names(section.prose, said):
                    found.append(f"{section.title}: {name} is not the same: {differs}")
    return found


def differences(text: str, ray: Surface, ours: Surface) -> list[tuple[str, str]]:
    """A name that has to be said, and why."""
    found = []
    if "not by its constructor" not in text and "all others are not there" not in text:
        found += [(name, f"the argument {name} {why}") for name, why in _between(ray["parameters"], ours["parameters"])]
    has, have = ray.get("members") or {}, ours.get("members") or {}
    if "methods are below" not in text and "all others are not there" not in text:
        fields = ray["parameters"] or {}
        found += [(name, f"the member {name} is not there") for name in has if name not in have and name not in fields]
        for method in has.keys() & have.keys():
            found += [(name, f"{method}({name}) {why}") for name, why in _between(has[method], have[method])]
    return found


def _between(ray: dict[str, str] | None, ours: dict[str, str] | None) -> list[tuple[str, str]]:
    if ray is None or ours is None:
        return []
    missing = [(name, "is not taken") for name in ray if name not in ours]
    more = [(name, "is ours") for name in ours if name not in ray]
    both = [name for name in ray if name in ours and HIDDEN not in (ray[name], ours[name]) and ray[name] != ours[name]]
    return [*missing, *more, *((name, f"is {ours[name]} and in Ray {ray[name]} by default") for name in both)]


SECTIONS = sections(PAGE.read_text())


@pytest.fixture(scope="module")
def surfaces() -> dict[str, Any]:
    asked: dict[str, list[str]] = {}
    for section in SECTIONS:
        for module in section.modules if section.title not in METHODS else []:
            asked[module] = RE_EXPORTED.get(module, "").split()
        if section.title not in METHODS:
            wanted = [name for row in section.rows for name in row.here]
            asked.setdefault(counterpart(section), []).extend(wanted)
    ended = subprocess.run(
        [sys.executable, str(READER), *OF_RAY_ITSELF],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PACELINE_PREWARM": "0"},
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    for title in METHODS:
        package, _, name = title.rpartition(".")
        for one in (package, package.replace("ray", "paceline")):
            members = found[one][name]["members"]
            found[f"{one}.{name}"] = {method: {"parameters": given} for method, given in members.items()}
    return found


def rays(section: Section, surfaces: dict[str, Any]) -> Surface:
    return {name: what for module in section.modules for name, what in surfaces[module].items()}


@pytest.mark.slow
def test_every_public_name_of_ray_has_a_row(surfaces: dict[str, Any]) -> None:
    wrong = [line for section in SECTIONS for line in wrong_names(section, rays(section, surfaces))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_what_is_said_to_be_there_is_and_what_is_not_is_not(surfaces: dict[str, Any]) -> None:
    wrong = [line for section in SECTIONS for line in wrong_kinds(section, surfaces[counterpart(section)])]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_every_argument_default_and_method_that_differs_is_named(surfaces: dict[str, Any]) -> None:
    wrong = [
        line
        for section in SECTIONS
        for line in wrong_arguments(section, rays(section, surfaces), surfaces[counterpart(section)] or {})
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_every_module_of_ray_has_a_table_or_is_known_to_need_none(surfaces: dict[str, Any]) -> None:
    have = {module for section in SECTIONS for module in section.modules}
    for package, known in OF_RAY_ITSELF.items():
        there = {f"{package}.{name}" for name in surfaces["modules"][package]}
        needless = {f"{package}.{name}" for name in known.split()}
        assert there - have == needless & there, f"{package} has a module without a table"


@pytest.mark.slow
def test_what_a_table_does_not_state_is_found(surfaces: dict[str, Any]) -> None:
    section = next(section for section in SECTIONS if section.title == "ray.train")
    ray, ours = rays(section, surfaces), surfaces[counterpart(section)]
    silent = dataclasses.replace(
        section, prose="", rows=[dataclasses.replace(row, kind="same", text="") for row in section.rows]
    )
    missing = dataclasses.replace(section, rows=section.rows[1:])
    assert wrong_names(missing, ray) == [f"ray.train: {name} has no row" for name in sorted(section.rows[0].names)]
    assert any(line.endswith("is not there") for line in wrong_kinds(silent, ours))
    assert any(line.endswith("is not taken") for line in wrong_arguments(silent, ray, ours))


def test_the_script_after_is_the_one_before_with_the_command_of_the_guide(tmp_path: Path) -> None:
    guide = (PAGE.parent / "from-ray-train.md").read_text()
    (command,) = re.findall(r"^```bash\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    before, after = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(before)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=30)
    assert (tmp_path / "train.py").read_text() == after
