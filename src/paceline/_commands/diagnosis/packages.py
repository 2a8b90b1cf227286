"""Versions: of Python, of Paceline, of what it needs, and of frameworks, with what each is good for.

Asked of the installation; nothing is imported for it.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata

import paceline
from paceline._commands.diagnosis.line import Line

NEEDED = ("cloudpickle", "msgspec", "numpy", "psutil", "pyarrow", "rich", "xxhash")

GOOD_FOR = {
    "torch": ("torch", "TorchTrainer"),
    "lightning": ("lightning", "Lightning trainers inside of TorchTrainer"),
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
    "fsspec": ("cloud", "runs in stores that pyarrow does not know"),
    "pandas": ("pandas", "metrics as a DataFrame"),
    "starlette": ("dashboard", "paceline dashboard"),
    "uvicorn": ("dashboard", "paceline dashboard"),
    "tensorboard": ("tensorboard", "its logger"),
    "mlflow": ("mlflow", "its logger"),
    "wandb": ("wandb", "its logger"),
    "pillow": ("images", "datasets of pictures"),
    "soundfile": ("audio", "datasets of sounds"),
    "av": ("video", "datasets of films"),
}
"""By package: the extra that brings it, and what it is good for."""

_ELSEWHERE = {"tensorflow": ("tensorflow", "tensorflow-cpu")}
"""Packages that come under other names."""


def looked_at() -> Iterator[Line]:
    implementation = platform.python_implementation()
    text = f"{implementation} {platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    yield Line("packages", "Python", "ok", text)
    yield Line("packages", "paceline", "ok", f"{paceline.__version__}, {paceline.__path__[0]}")
    needed = {name: version_of(name) for name in NEEDED}
    for name, version in needed.items():
        if version is None:
            yield Line("packages", name, "fail", "is needed and not installed", f"pip install {name}")
    told = ", ".join(f"{name} {version}" for name, version in needed.items() if version is not None)
    yield Line("packages", "needed", "ok", told)
    yield from _optional()


def version_of(name: str) -> str | None:
    for other in _ELSEWHERE.get(name, (name,)):
        try:
            return metadata.version(other)
        except metadata.PackageNotFoundError:
            continue
    return None


def _optional() -> Iterator[Line]:
    missing: dict[str, list[str]] = {}
    least = _least()
    for name, (extra, what) in GOOD_FOR.items():
        version = version_of(name)
        if version is None:
            missing.setdefault(extra, []).append(name)
        elif name in least and _numbers(version) < _numbers(least[name]):
            hint = f'pip install -U "paceline[{extra}]"'
            yield Line("packages", name, "warn", f"{version} is older than {least[name]}, for {what}", hint)
        else:
            yield Line("packages", name, "ok", f"{version}, for {what}")
    if missing:
        names = ", ".join(name for found in missing.values() for name in found)
        yield Line("packages", "not installed", "ok", names, f'pip install "paceline[{",".join(missing)}]" for all')


def _least() -> dict[str, str]:
    """The oldest version of each package that an extra takes; empty where Paceline was not installed as a package."""
    try:
        wanted = metadata.requires("paceline") or []
    except metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([\w.-]+?)\s*(?:\[[^]]*\])?\s*\(?>=\s*([\d.]+)", each) for each in wanted)
    return {match[1].lower(): match[2] for match in found if match}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])
