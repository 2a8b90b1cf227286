"""TensorflowCheckpoint: one Keras model or SavedModel, loaded without running code from the file."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from paceline.train.checkpoint import Checkpoint
from paceline.train.session import new_checkpoint

if TYPE_CHECKING:
    from paceline.data.preprocessor import Preprocessor


class TensorflowCheckpoint(Checkpoint):
    """A checkpoint with a model: `model.keras`, `model.h5` or the directory `saved_model`.

        train.report(metrics, checkpoint=TensorflowCheckpoint.from_model(model))
        model = TensorflowCheckpoint(result.checkpoint.path).get_model()

    In a worker the model is created on the run's storage, and `report` moves it into place without copying; read it
    from `get_checkpoint()` afterwards. Elsewhere it is a temporary directory that is deleted with this object.
    """

    MODEL_FILENAME: ClassVar[str] = "model.keras"
    MODEL_FILENAME_KEY: ClassVar[str] = "_model_filename"
    """For scripts written for Ray: its key for the name of the file, which is fixed here."""
    H5_FILENAME: ClassVar[str] = "model.h5"
    SAVED_MODEL: ClassVar[str] = "saved_model"

    @classmethod
    def from_model(cls, model: Any, *, preprocessor: Preprocessor | None = None) -> Self:
        """Save the current state of a Keras 3 or tf_keras model, with its optimizer."""
        return cls._from_writer(lambda directory: model.save(directory / cls.MODEL_FILENAME), preprocessor)

    @classmethod
    def from_keras(cls, file_path: str | os.PathLike[str], *, preprocessor: Preprocessor | None = None) -> Self:
        """Copy a file that `model.save("....keras")` wrote."""
        return cls._from_file(file_path, cls.MODEL_FILENAME, preprocessor)

    @classmethod
    def from_h5(cls, file_path: str | os.PathLike[str], *, preprocessor: Preprocessor | None = None) -> Self:
        """Copy a file that `model.save("....h5")` wrote."""
        return cls._from_file(file_path, cls.H5_FILENAME, preprocessor)

    @classmethod
    def from_saved_model(cls, dir_path: str | os.PathLike[str], *, preprocessor: Preprocessor | None = None) -> Self:
        """Copy a directory that `model.export(...)` or `tf.saved_model.save` wrote."""
        source = Path(dir_path)
        if not (source / "saved_model.pb").is_file():
            raise ValueError(f"dir_path must be a SavedModel, got {str(dir_path)!r}: it has no file saved_model.pb")
        return cls._from_writer(lambda directory: shutil.copytree(source, directory / cls.SAVED_MODEL), preprocessor)

    def get_model(self, *, custom_objects: Mapping[str, Any] | None = None, compile: bool = True) -> Any:
        """Load the model. Within `strategy.scope()`, its variables belong to the strategy.

        Pass custom layers and functions in `custom_objects`, or register them with Keras. Code stored in the file, as
        by a `Lambda` layer, is rejected. A SavedModel is loaded with `tf.saved_model.load`.
        """
        with self.as_directory() as name:
            directory = Path(name)
            if (directory / self.SAVED_MODEL).is_dir():
                import tensorflow as tf

                return tf.saved_model.load(str(directory / self.SAVED_MODEL))
            for file in (directory / self.MODEL_FILENAME, directory / self.H5_FILENAME):
                if file.is_file():
                    return _load_model(file, custom_objects, compile)
        raise ValueError(
            f"{self} has neither {self.MODEL_FILENAME} nor {self.H5_FILENAME} nor {self.SAVED_MODEL}\n\n"
            "hint: create one with TensorflowCheckpoint.from_model(model)"
        )

    @classmethod
    def _from_file(cls, file_path: str | os.PathLike[str], name: str, preprocessor: Preprocessor | None) -> Self:
        if not Path(file_path).is_file():
            raise ValueError(f"file_path must be a file, got {str(file_path)!r}")
        return cls._from_writer(lambda directory: shutil.copyfile(file_path, directory / name), preprocessor)

    @classmethod
    def _from_writer(cls, write: Any, preprocessor: Preprocessor | None) -> Self:
        checkpoint = new_checkpoint(cls)
        write(Path(checkpoint.path))
        if preprocessor is not None:
            checkpoint.set_preprocessor(preprocessor)
        return checkpoint


def _load_model(file: Path, custom_objects: Mapping[str, Any] | None, compile: bool) -> Any:
    version, config = _read_archive_config(file) if file.suffix == ".keras" else _read_h5_config(file)
    if _has_stored_code(config):
        raise ValueError(
            f"{file} has a Lambda layer, whose code is stored in the file and would be run\n\n"
            "hint: write a layer of your own, and pass it in custom_objects"
        )
    return _keras_for_version(version).models.load_model(
        file, custom_objects=custom_objects, compile=compile, safe_mode=True
    )


def _read_archive_config(file: Path) -> tuple[str, Any]:
    """Return the Keras version that wrote the file, and the model's configuration."""
    with zipfile.ZipFile(file) as archive:
        return json.loads(archive.read("metadata.json"))["keras_version"], json.loads(archive.read("config.json"))


def _read_h5_config(file: Path) -> tuple[str, Any]:
    import h5py

    with h5py.File(file, "r") as opened:
        attributes = opened.attrs
        if "model_config" not in attributes:
            raise ValueError(f"{file} holds only weights\n\nhint: load them into a model with model.load_weights(...)")
        return str(attributes.get("keras_version", "2")), json.loads(attributes["model_config"])


def _has_stored_code(config: Any) -> bool:
    """Return whether the configuration contains a function as code instead of by name."""
    if isinstance(config, Mapping):
        if config.get("class_name") == "__lambda__":
            return True
        if config.get("class_name") == "Lambda" and isinstance(config.get("config"), Mapping):
            function = config["config"].get("function")
            # Keras 2 stores a list with the marshalled code.
            if isinstance(function, list) or config["config"].get("function_type") == "lambda":
                return True
        return any(_has_stored_code(value) for value in config.values())
    return isinstance(config, list) and any(_has_stored_code(value) for value in config)


def _keras_for_version(version: str) -> Any:
    if not version.startswith("2"):
        import keras

        return keras
    try:
        import tf_keras
    except ImportError:
        raise ImportError(
            f"reading a model of Keras {version} needs tf_keras, which is not installed\n\n"
            'hint: pip install "paceline[tensorflow]"'
        ) from None
    return tf_keras
