"""Check versions: Python, Paceline, its dependencies and optional frameworks.

Versions come from package metadata; nothing is imported.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib import metadata

import paceline
from paceline._commands.diagnosis import DiagnosisLine

_line = partial(DiagnosisLine, "packages")

NEEDED = ("cloudpickle", "msgspec", "numpy", "psutil", "pyarrow", "xxhash")

GOOD_FOR = {
    "torch": ("torch", "TorchTrainer"),
    "lightning": ("lightning", "Lightning trainers inside TorchTrainer"),
    "transformers": ("transformers", "the Hugging Face Trainer"),
    "deepspeed": ("deepspeed", "DeepSpeed strategies of Lightning"),
    "tensorflow": ("tensorflow", "TensorflowTrainer"),
    "jax": ("jax", "JaxTrainer"),
    "xgboost": ("xgboost", "XGBoostTrainer"),
    "lightgbm": ("lightgbm", "LightGBMTrainer"),
    "ray": ("ray", "runs and datasets on a Ray cluster"),
    "optuna": ("tune", "OptunaSearch, and which parameters matter"),
    "matplotlib": ("tune", "plots of a search"),
    "obstore": ("cloud", "runs in S3 and Azure, with conditional puts"),
    "fsspec": ("cloud", "runs in stores that pyarrow does not support"),
    "pandas": ("pandas", "metrics as a DataFrame"),
    "starlette": ("dashboard", "paceline dashboard"),
    "uvicorn": ("dashboard", "paceline dashboard"),
    "tensorboard": ("tensorboard", "its logger"),
    "mlflow": ("mlflow", "its logger"),
    "wandb": ("wandb", "its logger"),
    "pillow": ("images", "image datasets"),
    "soundfile": ("audio", "audio datasets"),
    "av": ("video", "video datasets"),
    "google-crc32c": ("tfrecords", "TFRecord datasets"),
}
"""Package -> (the extra that installs it, what it is used for)."""

_DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "xgboost": ("xgboost", "xgboost-cpu"),
    "mlflow": ("mlflow", "mlflow-skinny"),
}
"""Package -> the names it is published under, if there are several."""


def check_packages() -> Iterator[DiagnosisLine]:
    implementation = platform.python_implementation()
    text = f"{implementation} {platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    yield _line("Python", "ok", text)
    yield _line("paceline", "ok", f"{paceline.__version__}, {paceline.__path__[0]}")
    needed = {name: installed_version(name) for name in NEEDED}
    for name, version in needed.items():
        if version is None:
            yield _line(name, "fail", "is required but not installed", f"pip install {name}")
    text = ", ".join(f"{name} {version}" for name, version in needed.items() if version is not None)
    yield _line("needed", "ok", text)
    yield from _check_optional()


def installed_version(name: str) -> str | None:
    for other in _DISTRIBUTIONS.get(name, (name,)):
        try:
            return metadata.version(other)
        except metadata.PackageNotFoundError:
            continue
    return None


def _check_optional() -> Iterator[DiagnosisLine]:
    missing: dict[str, list[str]] = {}
    least = _minimum_versions()
    for name, (extra, purpose) in GOOD_FOR.items():
        version = installed_version(name)
        if version is None:
            missing.setdefault(extra, []).append(name)
        elif name in least and _parse_version(version) < _parse_version(least[name]):
            hint = f'pip install "paceline[{extra}]"'
            yield _line(name, "warn", f"{version} is older than {least[name]}, for {purpose}", hint)
        else:
            yield _line(name, "ok", f"{version}, for {purpose}")
    if missing:
        names = ", ".join(name for group in missing.values() for name in group)
        yield _line("not installed", "ok", names, f'pip install "paceline[{",".join(missing)}]" for all')


def _minimum_versions() -> dict[str, str]:
    """Minimum versions that the extras require; empty if Paceline is not installed as a package."""
    try:
        requirements = metadata.requires("paceline") or []
    except metadata.PackageNotFoundError:
        return {}
    matches = (re.match(r"([\w.-]+?)\s*(?:\[[^]]*\])?\s*\(?>=\s*([\d.]+)", each) for each in requirements)
    return {match[1].lower(): match[2] for match in matches if match}


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])
