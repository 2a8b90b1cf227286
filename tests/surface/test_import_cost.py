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
began = time.process_time()
import {module}
took_s = time.process_time() - began
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}

import json
print(json.dumps([took_s, sorted(loaded - {{"{module}", "paceline"}} - set(sys.stdlib_module_names))]))
"""


def imported(run_script: RunScript, module: str) -> tuple[float, list[str]]:
    """The processor time of an import in a fresh interpreter, and what it loads besides the standard library."""
    ended = run_script(IMPORT.format(module=module), env={"PACELINE_PREWARM": "0"})
    assert ended.returncode == 0, ended.stderr
    took_s, packages = json.loads(ended.stdout)
    return took_s, packages


def test_importing_paceline_loads_the_standard_library_only(run_script: RunScript) -> None:
    _, packages = imported(run_script, "paceline")
    assert packages == []


@pytest.mark.slow  # It has a bound on time, and `make test` has none.
def test_importing_paceline_takes_less_than_50_ms(run_script: RunScript) -> None:
    took_s = min(imported(run_script, "paceline")[0] for _ in range(5))
    assert took_s < 0.050


FRAMEWORKS = ("huggingface.transformers", "jax", "lightgbm", "lightning", "tensorflow", "torch", "xgboost")
HEAVY = {"accelerate", "jax", "lightgbm", "lightning", "numpy", "pandas", "pyarrow", "ray", "tensorflow", "torch"}


@pytest.mark.parametrize("modules", ["paceline.train", ", ".join(f"paceline.train.{each}" for each in FRAMEWORKS)])
def test_importing_train_leaves_heavy_packages_alone(run_script: RunScript, modules: str) -> None:
    _, packages = imported(run_script, f"{modules}, psutil")
    assert "psutil" in packages, "what is loaded is seen"
    assert not {*HEAVY, "transformers", "xgboost"} & set(packages)
