"""What an import costs: `paceline` brings in the standard library only, `paceline.train` no heavy package."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

RunScript = Callable[..., CompletedProcess[str]]

IMPORT = """
import sys
import time

before = set(sys.modules)
began = time.perf_counter()
import {module}
took_s = time.perf_counter() - began
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}

import json
print(json.dumps([took_s, sorted(loaded - {{"{module}", "paceline"}} - set(sys.stdlib_module_names))]))
"""


def imported(run_script: RunScript, module: str) -> tuple[float, list[str]]:
    """How long a fresh interpreter takes to import it, and what it loads outside the standard library."""
    ended = run_script(IMPORT.format(module=module), env={"PACELINE_PREWARM": "0"})
    assert ended.returncode == 0, ended.stderr
    took_s, packages = json.loads(ended.stdout)
    return took_s, packages


def test_importing_paceline_loads_the_standard_library_only(run_script: RunScript) -> None:
    _, packages = imported(run_script, "paceline")
    assert packages == []


def test_importing_paceline_takes_less_than_50_ms(run_script: RunScript) -> None:
    took_s = min(imported(run_script, "paceline")[0] for _ in range(5))
    assert took_s < 0.050


@pytest.mark.parametrize("heavy", ["numpy", "pandas", "pyarrow", "ray", "torch"])
def test_importing_train_leaves_heavy_packages_alone(run_script: RunScript, heavy: str) -> None:
    _, packages = imported(run_script, "paceline.train")
    assert heavy not in packages


def test_a_package_that_is_loaded_is_seen(run_script: RunScript) -> None:
    _, packages = imported(run_script, "psutil, xxhash")
    assert packages == ["psutil", "xxhash"]
