"""The generated tables of guides/ray-names: each name of Ray is there, and what is missing has its reason."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page() -> Any:
    sys.path.insert(0, str(DOCS / "_site"))
    try:
        import ray_names_page
    finally:
        sys.path.pop(0)
    return ray_names_page


@pytest.mark.slow
def test_every_missing_name_says_what_to_use(page: Any) -> None:
    """In a process of its own: it imports all frameworks."""
    command = "import ray_names_page; print(*ray_names_page.find_unexplained(), sep='\\n')"
    ended = subprocess.run(
        [sys.executable, "-c", command], cwd=DOCS / "_site", capture_output=True, text=True, check=True, timeout=300
    )
    assert not ended.stdout.strip(), "these need a note in src/paceline/_core/ray_names.toml"


def test_missing_members_and_arguments_are_found_by_comparison(page: Any) -> None:
    class Ours:
        def __init__(self, present: int) -> None: ...

        def method(self, first: int) -> None: ...

    members = {
        "method": {"params": [["first", "", None], ["second", "", None]], "status": ""},
        "absent": {"params": [], "status": ""},
        "old": {"params": [], "status": "DEPRECATED"},
    }
    params = [["present", "POSITIONAL_OR_KEYWORD", None], ["gone", "KEYWORD_ONLY", None], ["args", "VAR_KEYWORD", None]]
    entry = {"kind": "class", "params": params, "members": members}
    assert list(page.find_missing(Ours, entry)) == ["gone=", "method(second=)", "absent"]
    assert page.find_ours("ray.train", "ScalingConfig").__module__.startswith("paceline.train")
    assert page.find_ours("ray.data.Dataset", "map_batches") is not None
    assert page.find_ours("ray.nowhere.at_all", "x") is None
    assert "| `gone` | no | use this |" in page._format_module("ray.nowhere.at_all", {}, {"gone": "use this"})


def test_the_script_after_is_the_one_before_with_the_command_of_the_guide(tmp_path: Path) -> None:
    guide = (DOCS / "guides" / "from-ray-train.md").read_text()
    (command,) = re.findall(r"^```bash\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    before, after = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(before)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=30)
    assert (tmp_path / "train.py").read_text() == after
