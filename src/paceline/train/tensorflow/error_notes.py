"""Explain exceptions of a train function that TensorFlow does not explain on the first line."""

from __future__ import annotations

import traceback
from typing import Any

_KERAS_3 = "/keras/src/"
"""Path of the files of Keras 3, not of `tf_keras`."""

KERAS_HINT = (
    "hint: fit() of Keras 3 does not work under MultiWorkerMirroredStrategy with several workers, that of tf_keras "
    'does: pip install tf_keras and set os.environ["TF_USE_LEGACY_KERAS"] = "1" before tensorflow is imported, '
    "or train with strategy.run"
)


def is_secondary_error(error: BaseException) -> bool:
    """Return whether the failure of another worker caused it: an aborted collective or an unavailable server."""
    import tensorflow as tf

    kinds = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    return isinstance(error, kinds) and any(sign in str(error) for sign in ("Collective ops is aborted", "/job:worker"))


def explain_error(error: BaseException, world_size: int) -> str | None:
    """Return a note to add: the reason below a generic heading, or a hint about Keras 3."""
    text = str(error)
    if world_size > 1 and "replica" in text.lower() and _is_from_keras_3(error):
        return KERAS_HINT
    return extract_reason(text)


def extract_reason(text: str) -> str | None:
    """Return the reason from a `tf.function` error, which starts with a heading and node locations."""
    heading, _, rest = text.partition("\n")
    if heading.strip() != "Graph execution error:":
        return None
    told = rest.split("[[{{node")[0]
    *_, last = told.rstrip().split("\n\n")
    return next((line.strip() for line in last.splitlines() if line.strip()), None)


def _is_from_keras_3(error: BaseException) -> bool:
    frames: Any = traceback.walk_tb(error.__traceback__)
    return any(_KERAS_3 in frame.f_code.co_filename for frame, _ in frames)
