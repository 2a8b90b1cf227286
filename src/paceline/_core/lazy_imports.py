"""Packages whose names are imported on first access.

Every worker pays again for what it imports, and the imports of a script delay the start of its workers.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from paceline._core.call_errors import explain_calls


def make_lazy_getattr(
    package: str, modules: Mapping[str, tuple[str, ...]], submodules: tuple[str, ...] = ()
) -> Callable[[str], Any]:
    """Return a package's `__getattr__` that imports each name from its module.

    Wrong calls of these, and names that only Ray has, get an error that says what to use.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def getattr_lazily(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name not in module_of:
            raise_missing(package, name, (*module_of, *submodules))
        value = explain_calls(getattr(importlib.import_module(module_of[name]), name))
        setattr(sys.modules[package], name, value)
        return value

    return getattr_lazily


def explain_module(name: str) -> None:
    """Explain wrong calls of a public module's names, and names that only Ray has there. For the module's last line."""
    module = sys.modules[name]
    public = getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]
    for each in public:
        if getattr(vars(module).get(each), "__module__", None) == name:
            setattr(module, each, explain_calls(vars(module)[each]))

    def getattr_missing(attribute: str) -> Any:
        raise_missing(name, attribute, public)

    module.__getattr__ = getattr_missing  # type: ignore[method-assign]


EXTRA_OF = {
    **{name: name for name in ("jax", "lightgbm", "lightning", "mlflow", "pandas", "ray", "tensorboard", "tensorflow")},
    **{name: name for name in ("deepspeed", "opentelemetry", "torch", "transformers", "wandb", "xgboost")},
    **{name: name for name in ("ax", "hebo", "hyperopt", "nevergrad", "zoopt")},
    "ConfigSpace": "bohb",
    "PIL": "images",
    "accelerate": "transformers",
    "av": "video",
    "dask": "dask",
    "deltalake": "delta",
    "fastavro": "avro",
    "lance": "lance",
    "pyiceberg": "iceberg",
    "zarr": "zarr",
    "bayes_opt": "bayesopt",
    "fsspec": "cloud",
    "hpbandster": "bohb",
    "google_crc32c": "tfrecords",
    "libcst": "migrate",
    "matplotlib": "tune",
    "obstore": "cloud",
    "optuna": "tune",
    "orbax": "jax",
    "safetensors": "torch",
    "soundfile": "audio",
    "starlette": "dashboard",
    "tf_keras": "tensorflow",
    "uvicorn": "dashboard",
}
"""The extra that installs a module."""


def import_extra(module: str, who: str) -> Any:
    """Import an optional dependency; if it is not installed, say who needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        explained = explain_import(error, who)
        if explained is None:
            raise
        raise explained from None


def explain_import(error: ModuleNotFoundError, who: str) -> ImportError | None:
    """Return a better error for an optional dependency that is not installed; None for any other module."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF or sys.modules.get(module) is not None:
        return None
    hint = f'pip install "paceline[{EXTRA_OF[module]}]"'
    return ImportError(f"{who} needs {module}, which is not installed\n\nhint: {hint}", name=module)


def raise_missing(module: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raise for a name that a module of ours does not have. Called by the module's `__getattr__`."""
    if name.startswith("_"):  # Python's own questions, as for `__path__`.
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules.get(module))
    from paceline._core.ray_names import raise_missing_name

    raise_missing_name(module, name, known)
