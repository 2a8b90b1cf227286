"""The entry of a process that a fresh interpreter becomes: see `launch.SpawnLauncher`."""

import importlib
import json
import os
import signal
import sys

from paceline._core import system


def spawned() -> None:
    """Arguments: the module to run, three descriptors, the driver's pid, its `sys.path` and `sys.argv`."""
    system.in_worker = True
    module, control, log, job, driver, path, argv = sys.argv[1:]
    system.die_with_parent(signal.SIGKILL)
    if os.getppid() != int(driver):
        return
    sys.path[:] = json.loads(path)
    sys.argv[:] = json.loads(argv)
    main = importlib.import_module(module)
    os._exit(main.run(control_fd=int(control), log_fd=int(log), job_fd=int(job)))
