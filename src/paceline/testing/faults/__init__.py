"""Faults for tests of scripts and of Paceline itself: see `Faults`, and docs/guides/testing.md.

values   faults as values, and `Faults`         engine  faults of workers and messages
moments  phases, and which faults have struck   worker  faults inside a worker
plant    plants faults in a run's environment   files   faults of the disk
"""

from paceline.testing.faults.moments import PHASES, At
from paceline.testing.faults.values import DriverLost, Faults

__all__ = ["PHASES", "At", "DriverLost", "Faults"]
