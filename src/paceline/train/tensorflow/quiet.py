"""To import this imports TensorFlow without its greeting of several lines, unless the user wants to hear it.

Most of it a variable turns off, which TensorFlow reads when it is imported; some is printed whatever is set. All else
that an import prints comes a moment later. So workers import this first.
"""

import os
import sys
import tempfile

_GREETING = (b"absl::InitializeLog()", b"oneDNN custom operations are on", b"This TensorFlow binary is optimized")
_CONTINUED = b"To enable the following instructions"


def _import_quietly() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            printed.seek(0)
            for line in printed:
                if not any(part in line for part in (*_GREETING, _CONTINUED)):
                    os.write(2, line)


if "TF_CPP_MIN_LOG_LEVEL" not in os.environ and "tensorflow" not in sys.modules:
    _import_quietly()

import tensorflow as tf  # noqa: E402  only now, in silence

__all__ = ["tf"]
