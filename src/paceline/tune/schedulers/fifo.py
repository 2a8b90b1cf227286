"""Runs trials in the order they are created, each to its end."""

from __future__ import annotations

from typing import ClassVar

from paceline.tune.schedulers.scheduler import TrialScheduler


class FIFOScheduler(TrialScheduler):
    """Lets every trial run to its end. It decides nothing, so no trial ever waits in `report()`."""

    decides: ClassVar[bool] = False
