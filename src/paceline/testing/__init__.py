"""Stand-ins for tests: a clock that is moved by hand, an engine without processes, the contract of all engines."""

from paceline.testing.clock import FakeClock
from paceline.testing.engine import FakeEngine, FakeWorker

__all__ = ["FakeClock", "FakeEngine", "FakeWorker"]
