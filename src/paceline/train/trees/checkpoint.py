"""A tree model in a checkpoint: one file in the library's own format, which contains no code."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, ClassVar, Self

from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import staging_directory


class ModelCheckpoint(Checkpoint):
    """A checkpoint with a single model file. Subclasses define how a library writes and reads it."""

    MODEL_FILENAME: ClassVar[str]

    @classmethod
    def from_model(cls, booster: Any, *, path: str | os.PathLike[str] | None = None) -> Self:
        """Write a model, into the directory `path` if given.

        Otherwise, in a worker the file is created on the run's storage, and `report` moves it into place; elsewhere it
        is a temporary file that is deleted with this object.
        """
        directory = Path(path) if path is not None else _new_directory()
        directory.mkdir(parents=True, exist_ok=True)
        checkpoint = cls.from_directory(directory)
        if path is None and worker_context.current() is None:
            weakref.finalize(checkpoint, shutil.rmtree, directory, ignore_errors=True)
        cls._write(booster, directory / cls.MODEL_FILENAME)
        return checkpoint

    def get_model(self) -> Any:
        """Load the model."""
        return type(self)._read_from(self, self.MODEL_FILENAME)

    @classmethod
    def _read_from(cls, checkpoint: Checkpoint, filename: str) -> Any:
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(f"checkpoint={checkpoint!r} is not a paceline.train.Checkpoint")
        with checkpoint.as_directory() as directory:
            file = Path(directory) / filename
            if not file.is_file():
                there = ", ".join(sorted(path.name for path in Path(directory).iterdir() if path.name[0] != "."))
                raise FileNotFoundError(
                    f"{checkpoint} has no file {filename!r}; there are: {there or 'none'}\n\n"
                    "hint: get_model(checkpoint, filename=...) takes the name that the report callback was given"
                )
            return cls._read(file)

    @staticmethod
    def _write(booster: Any, file: Path) -> None:
        raise NotImplementedError

    @staticmethod
    def _read(file: Path) -> Any:
        raise NotImplementedError


def _new_directory() -> Path:
    if worker_context.current() is not None:
        # Not a temporary directory tied to the object: an ASYNC upload may still read it after the object is gone.
        return staging_directory()
    return Path(tempfile.mkdtemp(prefix="paceline-checkpoint-"))
