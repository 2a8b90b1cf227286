"""Test doubles: a clock moved by hand, an engine without processes, the contract of all engines, and faults.

`Faults` is also for tests of your own scripts: see docs/guides/testing.md.
"""

from paceline.testing.engine import FakeClock, FakeEngine, FakeWorker
from paceline.testing.faults import PHASES, At, DriverLost, Faults

__all__ = ["PHASES", "At", "DriverLost", "FakeClock", "FakeEngine", "FakeWorker", "Faults"]
