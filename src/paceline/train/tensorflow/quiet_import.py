"""Import TensorFlow without its startup messages, unless the user asked for all messages.

An environment variable turns off most of them at import; some are printed regardless and filtered here, while other
output of the import is kept. Workers import this module first.
"""

import os
import sys
import tempfile

from paceline._core.process_setup import flush_stdio

_GREETING = (
    b"absl::InitializeLog()",
    b"oneDNN custom operations are on",
    b"This TensorFlow binary is optimized",
    b"To enable the following instructions",
)


def _import_quietly() -> None:
    flush_stdio()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        finally:
            flush_stdio()
            os.dup2(stderr, 2)
            os.close(stderr)
            printed.seek(0)
            for line in printed:
                if not any(part in line for part in _GREETING):
                    os.write(2, line)


if "tensorflow" not in sys.modules:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; TensorFlow's default includes warnings
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0":
        _import_quietly()

import tensorflow as tf  # noqa: E402

__all__ = ["tf"]
