"""Which of Lightning's two packages is in use. They have the same classes, and take only their own."""

from __future__ import annotations

import sys

from paceline.train.backend import is_installed, require

_LIGHTNING, _PYTORCH_LIGHTNING = "lightning", "pytorch_lightning"


def home_of_classes(wanted: str) -> str:
    """The module with our classes for the package that this process has imported; of both or none, for `lightning`."""
    return f"{__package__}.of_{_in_use(wanted)}"


def _in_use(wanted: str) -> str:
    if sys.modules.get("lightning.pytorch"):
        return _LIGHTNING
    if sys.modules.get(_PYTORCH_LIGHTNING) or (not is_installed(_LIGHTNING) and is_installed(_PYTORCH_LIGHTNING)):
        return _PYTORCH_LIGHTNING
    require(f"paceline.train.lightning.{wanted}", (_LIGHTNING,), "lightning")
    return _LIGHTNING
