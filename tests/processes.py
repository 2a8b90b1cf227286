"""Which processes of a run are left: what G5 is about."""

import psutil


def still_running(processes: list[psutil.Process] | set[psutil.Process], within_s: float = 2.0) -> list[psutil.Process]:
    """Those that run after that time. One that has ended and is not yet collected by its parent does not run."""
    _, left = psutil.wait_procs(processes, timeout=within_s)
    return [process for process in left if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
