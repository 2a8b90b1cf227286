"""Faults for tests of scripts and of Paceline itself: see `Faults`, and docs/guides/testing.md.

values      faults as values, and `Faults`               moments         when faults strike: phases
plant       plants faults in a run's environment         strike_log      which faults have struck, in a file
engine      faults of workers and messages               files           faults of the disk
worker      faults inside a worker                       process_faults  what a fault does to its process
wire        faults of messages, in one direction
"""

from paceline.testing.faults.moments import PHASES, At
from paceline.testing.faults.values import DriverLost, Faults

__all__ = ["PHASES", "At", "DriverLost", "Faults"]
