"""The Ray engine keeps the contract of all engines."""

import importlib.util
import sys
from pathlib import Path

import pytest

from paceline._core.system import SystemClock
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.placement import PlacementSpec

_spec = importlib.util.spec_from_file_location(
    "engine_contract", Path(__file__).parents[1] / "contracts/test_engine.py"
)
assert _spec is not None
assert _spec.loader is not None
engines = sys.modules["engine_contract"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(engines)


@pytest.mark.slow
class TestRayWorkers(engines.TestForkedWorkers):
    def engine(self):
        return RayEngine(PlacementSpec({"CPU": 1}))


@pytest.mark.chaos  # as local ones, which `tests/contracts` has: only how they are started differs
class TestSpawnedRayWorkers(TestRayWorkers):
    start_method = "spawn"


class TestFaultyRayWorkers(TestRayWorkers):
    def engine(self):
        return engines.faulty(super().engine(), SystemClock(), self.path)
