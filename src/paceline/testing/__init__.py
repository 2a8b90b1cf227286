"""Stand-ins for tests: a clock that is moved by hand, an engine without processes, the contract of all engines, faults.

`Faults` is for tests of your own scripts as well: see docs/guides/testing.md.
"""

from paceline.testing.clock import FakeClock
from paceline.testing.engine import FakeEngine, FakeWorker
from paceline.testing.faults import PHASES, At, DriverLost, Faults

__all__ = ["PHASES", "At", "DriverLost", "FakeClock", "FakeEngine", "FakeWorker", "Faults"]
