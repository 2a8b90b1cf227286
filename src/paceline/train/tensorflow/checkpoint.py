"""TensorflowCheckpoint: one Keras model, or one SavedModel, read back without running code that came with it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import staging_directory


class TensorflowCheckpoint(Checkpoint):
    """A checkpoint with a model in it: `model.keras`, `model.h5` or the directory `saved_model`.

        train.report(metrics, checkpoint=TensorflowCheckpoint.from_model(model))
        model = TensorflowCheckpoint(result.checkpoint.path).get_model()

    Made in a worker it lies on the run's own storage, and `report` moves it into place without copying: read it from
    `get_checkpoint()` after that. Made elsewhere it is a temporary directory that goes with this object.
    """

    MODEL_FILENAME: ClassVar[str] = "model.keras"
    H5_FILENAME: ClassVar[str] = "model.h5"
    SAVED_MODEL: ClassVar[str] = "saved_model"

    @classmethod
    def from_model(cls, model: Any) -> Self:
        """A Keras model as it is now, with its optimizer: of Keras 3 or of tf_keras."""
        return cls._made(lambda directory: model.save(directory / cls.MODEL_FILENAME))

    @classmethod
    def from_keras(cls, file_path: str | os.PathLike[str]) -> Self:
        """What `model.save("....keras")` wrote."""
        return cls._copied(file_path, cls.MODEL_FILENAME)

    @classmethod
    def from_h5(cls, file_path: str | os.PathLike[str]) -> Self:
        """What `model.save("....h5")` wrote."""
        return cls._copied(file_path, cls.H5_FILENAME)

    @classmethod
    def from_saved_model(cls, dir_path: str | os.PathLike[str]) -> Self:
        """A directory that `model.export(...)` or `tf.saved_model.save` wrote."""
        source = Path(dir_path)
        if not (source / "saved_model.pb").is_file():
            raise ValueError(f"dir_path={str(dir_path)!r} is no SavedModel: it has no file saved_model.pb")
        return cls._made(lambda directory: shutil.copytree(source, directory / cls.SAVED_MODEL))

    def get_model(self, *, custom_objects: Mapping[str, Any] | None = None, compile: bool = True) -> Any:
        """The model. Within `strategy.scope()` its variables are the strategy's.

        Layers and functions of your own are named in `custom_objects`, or registered with Keras. Code that is stored in
        the file, as a `Lambda` layer does, is refused. Of a SavedModel it is what `tf.saved_model.load` gives.
        """
        with self.as_directory() as name:
            directory = Path(name)
            if (directory / self.SAVED_MODEL).is_dir():
                import tensorflow as tf

                return tf.saved_model.load(str(directory / self.SAVED_MODEL))
            for file in (directory / self.MODEL_FILENAME, directory / self.H5_FILENAME):
                if file.is_file():
                    return _loaded(file, custom_objects, compile)
        raise ValueError(
            f"{self} has neither {self.MODEL_FILENAME} nor {self.H5_FILENAME} nor {self.SAVED_MODEL}\n\n"
            "hint: TensorflowCheckpoint.from_model(model) makes one that has"
        )

    @classmethod
    def _copied(cls, file_path: str | os.PathLike[str], name: str) -> Self:
        if not Path(file_path).is_file():
            raise ValueError(f"file_path={str(file_path)!r} is not a file")
        return cls._made(lambda directory: shutil.copyfile(file_path, directory / name))

    @classmethod
    def _made(cls, write: Any) -> Self:
        in_worker = worker_context.current() is not None
        # In a worker not one that goes with the object: an ASYNC upload still reads it when the object is gone.
        directory = staging_directory() if in_worker else Path(tempfile.mkdtemp(prefix="paceline-checkpoint-"))
        checkpoint = cls.from_directory(directory)
        if not in_worker:
            weakref.finalize(checkpoint, shutil.rmtree, checkpoint.path, ignore_errors=True)
        write(directory)
        return checkpoint


def _loaded(file: Path, custom_objects: Mapping[str, Any] | None, compile: bool) -> Any:
    version, config = _about_archive(file) if file.suffix == ".keras" else _about_h5(file)
    if _stored_code(config):
        raise ValueError(
            f"{file} has a Lambda layer, whose code is stored in the file and would be run\n\n"
            "hint: make it a layer of your own, and name that in custom_objects"
        )
    return _keras(version).models.load_model(file, custom_objects=custom_objects, compile=compile, safe_mode=True)


def _about_archive(file: Path) -> tuple[str, Any]:
    """The version of Keras that wrote it, and what the model is made of."""
    with zipfile.ZipFile(file) as archive:
        return json.loads(archive.read("metadata.json"))["keras_version"], json.loads(archive.read("config.json"))


def _about_h5(file: Path) -> tuple[str, Any]:
    import h5py

    with h5py.File(file, "r") as opened:
        attributes = opened.attrs
        if "model_config" not in attributes:
            raise ValueError(f"{file} holds weights only\n\nhint: model.load_weights(...) reads them into a model")
        return str(attributes.get("keras_version", "2")), json.loads(attributes["model_config"])


def _stored_code(config: Any) -> bool:
    """Whether a function is kept there as code, and not by its name."""
    if isinstance(config, Mapping):
        if config.get("class_name") == "__lambda__":
            return True
        if config.get("class_name") == "Lambda" and isinstance(config.get("config"), Mapping):
            function = config["config"].get("function")
            # As Keras 2 writes it: a list with the marshalled code.
            if isinstance(function, list) or config["config"].get("function_type") == "lambda":
                return True
        return any(_stored_code(value) for value in config.values())
    return isinstance(config, list) and any(_stored_code(value) for value in config)


def _keras(version: str) -> Any:
    """The Keras that reads what this version wrote."""
    if not version.startswith("2"):
        import keras

        return keras
    try:
        import tf_keras
    except ImportError:
        raise ImportError(
            f"the model was written by Keras {version}, which tf_keras reads, and that is not installed\n\n"
            'hint: pip install "paceline[tensorflow]"'
        ) from None
    return tf_keras
