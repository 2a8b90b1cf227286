"""Faults for tests of scripts and of Paceline itself: see `Faults`, and docs/guides/testing.md.

values      what is to go wrong, and `Faults`            moments   when: phases, and their passing
plant       the seams that faults are planted in         fired     what has struck, in a file
engine      workers and messages                         files     the disk
worker      inside a worker                              acts      what is done to a process
"""

from paceline.testing.faults.moments import PHASES, At
from paceline.testing.faults.values import DriverLost, Faults

__all__ = ["PHASES", "At", "DriverLost", "Faults"]
