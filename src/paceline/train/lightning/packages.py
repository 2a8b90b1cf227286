"""Find which of Lightning's two packages is in use. Each accepts only its own classes."""

from __future__ import annotations

import sys

from paceline.train.backend import is_installed, require

_LIGHTNING, _PYTORCH_LIGHTNING = "lightning", "pytorch_lightning"


def find_class_module(wanted: str) -> str:
    """Return the module with our classes for the imported package; `lightning` if both or none are imported."""
    return f"{__package__}.{_choose_package(wanted)}_classes"


def _choose_package(wanted: str) -> str:
    if sys.modules.get("lightning.pytorch"):
        return _LIGHTNING
    if sys.modules.get(_PYTORCH_LIGHTNING) or (not is_installed(_LIGHTNING) and is_installed(_PYTORCH_LIGHTNING)):
        return _PYTORCH_LIGHTNING
    require(f"paceline.train.lightning.{wanted}", (_LIGHTNING,), "lightning")
    return _LIGHTNING
