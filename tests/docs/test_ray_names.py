"""The generated tables of guides/ray-names: each name of Ray is there, and what is missing has its reason."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module", autouse=True)
def _builders_of_the_site() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "_site")
        yield


def run_on_all_frameworks(command: str) -> str:
    """In a process of its own: it imports all frameworks."""
    ended = subprocess.run(
        [sys.executable, "-c", command], cwd=DOCS / "_site", capture_output=True, text=True, check=True, timeout=300
    )
    return ended.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_everything_of_train_tune_and_air_is_here_or_left_out_on_purpose() -> None:
    problems = run_on_all_frameworks("import ray_coverage; print(*ray_coverage.find_problems(), sep='\\n')")
    assert not problems, f"add it, or change docs/ray_names/omissions.txt:\n{problems}"


def test_what_is_left_out_is_ray_s_and_has_a_reason() -> None:
    import ray_coverage
    import ray_names_page

    class Anything:
        """Has every member, and takes every argument."""

        def __init__(self, **arguments: Any) -> None: ...

    def find(module: str, name: str) -> Any:
        members = facts[module][name].get("members") or {}
        return type(name, (Anything,), dict.fromkeys(members, Anything))

    facts = ray_names_page.load_facts()
    parts = list(ray_coverage.list_parts(facts, find))
    labels = {part.label for part in parts}
    assert all(part.is_present for part in parts)
    omitted = ray_names_page.load_list("omissions.txt")
    assert not {*omitted} - labels
    assert all(omitted.values())


@pytest.mark.slow
def test_every_missing_name_says_what_to_use() -> None:
    unexplained = run_on_all_frameworks("import ray_names_page; print(*ray_names_page.find_unexplained(), sep='\\n')")
    assert not unexplained, "these need a note in src/paceline/_core/ray_names.toml"


def test_missing_members_and_arguments_are_found_by_comparison() -> None:
    import ray_coverage
    import ray_names_page as page

    class Ours:
        def __init__(self, a: int) -> None: ...

        def method(self, a: int) -> None: ...

    described = {
        "kind": "class",
        "params": [["a", "", None], ["c", "", None], ["d", "VAR_KEYWORD", None], ["_e", "", None]],
        "members": {
            "method": {"params": [["a", "", None], ["b", "", None]]},
            "gone": "value",
            "old": {"status": "DEPRECATED"},
        },
    }
    names = {"Ours": described, "Gone": described, "Old": {"kind": "class", "status": "DEPRECATED"}}
    found = [*ray_coverage.list_parts({"ray.tune.x": names}, lambda _, name: Ours if name == "Ours" else None)]
    assert {part.label.removeprefix("ray.tune.x."): part.is_present for part in found} == {
        "Ours": True, "Ours(a)": True, "Ours(c)": False, "Ours.method": True, "Ours.method(a)": True,
        "Ours.method(b)": False, "Ours.gone": False, "Gone": False,
    }  # fmt: skip
    assert list(page.find_missing(Ours, described)) == ["c=", "method(b=)", "gone"]
    assert page.find_ours("ray.data.Dataset", "map_batches").__module__.startswith("paceline.data")
    assert page.find_ours("ray.nowhere.at_all", "x") is None
    reason = {"ray.train.ScalingConfig(use_tpu)": "no slices"}
    assert page._format_missing("use_tpu=", "ray.train.ScalingConfig", reason) == "`use_tpu=` (no slices)"
    assert "| `gone` | no | use this |" in page._format_module("ray.nowhere.at_all", {}, {"gone": "use this"})


def test_the_script_after_is_the_one_before_with_the_command_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (DOCS / "guides" / "from-ray-train.md").read_text()
    (command,) = re.findall(r"^```bash\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    before, after = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(before)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    assert (tmp_path / "train.py").read_text() == after
