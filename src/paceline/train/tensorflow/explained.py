"""What an exception of a train function means, where TensorFlow itself does not say it on the first line."""

from __future__ import annotations

import traceback
from typing import Any

_KERAS_3 = "/keras/src/"
"""Its files; those of `tf_keras` lie elsewhere."""

KERAS_HINT = (
    "hint: fit() of Keras 3 does not work under MultiWorkerMirroredStrategy with several workers, that of tf_keras "
    'does: pip install tf_keras and set os.environ["TF_USE_LEGACY_KERAS"] = "1" before tensorflow is imported, '
    "or train with strategy.run"
)


def is_echo(error: BaseException) -> bool:
    """Whether another worker's end is behind it: a collective that was broken off, a server that is gone."""
    import tensorflow as tf

    kinds = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    return isinstance(error, kinds) and any(sign in str(error) for sign in ("Collective ops is aborted", "/job:worker"))


def note_on(error: BaseException, world_size: int) -> str | None:
    """What to add: the reason that stands below a heading, or what to do about Keras 3."""
    text = str(error)
    if world_size > 1 and "replica" in text.lower() and _passed_keras_3(error):
        return KERAS_HINT
    return reason_in(text)


def reason_in(text: str) -> str | None:
    """Of an error inside a `tf.function`, which begins with a heading and the places of the node, what went wrong."""
    heading, _, rest = text.partition("\n")
    if heading.strip() != "Graph execution error:":
        return None
    told = rest.split("[[{{node")[0]
    *_, last = told.rstrip().split("\n\n")
    return next((line.strip() for line in last.splitlines() if line.strip()), None)


def _passed_keras_3(error: BaseException) -> bool:
    frames: Any = traceback.walk_tb(error.__traceback__)
    return any(_KERAS_3 in frame.f_code.co_filename for frame, _ in frames)
