"""Every exception that a user can see.

    PacelineError
    ├── TrainingFailedError          fit() could not finish; `.result` has what was reached
    │   ├── WorkerGroupError         a worker failed; `.worker_failures` has the exception of each rank
    │   ├── ControllerError          the driver failed
    │   └── PreemptionError          the machine was preempted; an uncaught one exits with code 75
    ├── StorageError                 a file could not be written, read or trusted
    │   ├── CheckpointCorruptError   files of a committed checkpoint are missing or altered
    │   ├── RunExistsError           the name is taken, by a run that is complete and was another one
    │   └── RunHeldError             another driver writes this run
    ├── ReportMismatchError          ranks called report() a different number of times
    ├── DataError                    a unit of a dataset could not be read or transformed
    └── WorkerError                  replaces a worker's exception that cannot be unpickled here
    KeyboardInterrupt
    └── TrainingInterrupt            Ctrl-C or `paceline stop`; `.result` has what was reached; exits with code 130

Each one pickles, because exceptions cross processes.
"""

from __future__ import annotations

import sys
from typing import Any


class PacelineError(Exception):
    """The base class of Paceline's exceptions."""


RayTrainError = PacelineError
"""Ray's name for the base class of its own."""


class TrainingFailedError(PacelineError, RuntimeError):
    """Training did not finish. `result` holds the metrics and checkpoints that were reached."""

    def __init__(self, message: str = "", result: Any = None) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)


class WorkerGroupError(TrainingFailedError):
    """One or more workers failed. `worker_failures` maps ranks to their exceptions, the cause first."""

    def __init__(self, error_message: str, worker_failures: dict[int, BaseException], result: Any = None) -> None:
        super().__init__(error_message, result)
        self.worker_failures = worker_failures

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.worker_failures, self.result)


class ControllerError(TrainingFailedError):
    """The driver failed: workers could not be started, or the run could not be written."""

    def __init__(self, controller_failure: BaseException, result: Any = None) -> None:
        super().__init__(f"{type(controller_failure).__name__}: {controller_failure}", result)
        self.controller_failure = controller_failure

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.controller_failure, self.result)


class PreemptionError(TrainingFailedError, SystemExit):
    """The machine is being preempted, and the run has stopped so that it can be resumed elsewhere.

    A script that does not catch it exits with code 75, which tells a scheduler to start it again.
    """

    EXIT_CODE = 75

    def __init__(
        self, message: str = "", result: Any = None, preemption_info: Any = None, drain_timed_out: bool = False
    ) -> None:
        super().__init__(message, result)
        self.code = self.EXIT_CODE
        self.preemption_info = preemption_info
        self.drain_timed_out = drain_timed_out
        """Whether the grace period ended before all ranks had stopped at a report."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result, self.preemption_info, self.drain_timed_out)


class SessionMisuseError(PacelineError, RuntimeError):
    """A function of the train function, such as `report()`, was called elsewhere."""


class StorageError(PacelineError, OSError):
    """A file of the run could not be written, read or trusted."""


class CheckpointCorruptError(StorageError):
    """Files of a committed checkpoint are missing or altered."""


class RunExistsError(StorageError, ValueError):
    """The name is taken: by a run of other code or configuration, or by any if `RunConfig(if_exists="fail")`."""


class RunHeldError(StorageError):
    """Another driver writes this run."""


class ReportMismatchError(PacelineError, RuntimeError):
    """Ranks called `report()` a different number of times, and a checkpoint waited for a report that never came."""


class DataError(PacelineError, RuntimeError):
    """A unit of a dataset could not be read or transformed, or the process that did so kept dying."""


class WorkerError(PacelineError, RuntimeError):
    """Replaces an exception of a worker that could not be sent to the driver."""


class TrainingInterrupt(KeyboardInterrupt):
    """A person stopped the run or the search. `result` is its `Result` or `ResultGrid` so far.

    Not a `PacelineError`: `except Exception` does not catch it. A script that does not catch it exits with code 130.
    """

    EXIT_CODE = 130

    def __init__(self, message: str = "", result: Any = None) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)

    def for_caller(self) -> TrainingInterrupt:
        """Return the error that `fit()` raises: it ends a script with its exit code, but not a prompt or a notebook."""
        return self if hasattr(sys, "ps1") else ScriptInterrupt(str(self), self.result)


class ScriptInterrupt(TrainingInterrupt, SystemExit):
    """Python exits with 130 only for `KeyboardInterrupt` itself, and with 1 for its subclasses."""

    def __init__(self, message: str = "", result: Any = None) -> None:
        super().__init__(message, result)
        self.code = self.EXIT_CODE


# Tracebacks show exceptions by their public import path.
for _class in list(globals().values()):
    if isinstance(_class, type) and issubclass(_class, PacelineError):
        _class.__module__ = "paceline.train"
DataError.__module__ = "paceline.data"
TrainingInterrupt.__module__ = "paceline.train"
