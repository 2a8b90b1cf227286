"""Classifies errors of stores: transient, or the same on the next try. Pure.

Libraries differ in how they report this: by errno, by an attribute with the status, or only in the message.
"""

from __future__ import annotations

import errno
import re

_TRANSIENT_ERRNOS = frozenset(
    {
        *(errno.EIO, errno.EPIPE, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT),
        *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET),
    }
)
_TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 509})
_PERMANENT_ERROR_TYPES = (
    *(ValueError, TypeError, AttributeError, LookupError),
    *(NotImplementedError, ImportError, MemoryError),
)
_PERMANENT_ERROR_NAMES = frozenset(
    {
        # obstore and botocore
        *("PermissionDeniedError", "UnauthenticatedError", "NotFoundError", "NotSupportedError", "InvalidPathError"),
        *("PreconditionError", "UnknownConfigurationKeyError", "NoCredentialsError", "ParamValidationError"),
        # S3, as reported by pyarrow
        *("ACCESS_DENIED", "NO_SUCH_BUCKET", "NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "VALIDATION", "INVALID_SIGNATURE"),
        *("INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT"),
        "MISSING_AUTHENTICATION_TOKEN",
        # GCS
        *("PERMISSION_DENIED", "UNAUTHENTICATED", "NOT_FOUND", "INVALID_ARGUMENT", "FAILED_PRECONDITION"),
        *("OUT_OF_RANGE", "UNIMPLEMENTED", "ALREADY_EXISTS"),
        # ours
        "NoSuchBucket",
    }
)
_STATUS = re.compile(
    r"(?:(?:HTTP status(?: code)?|status code|status|HTTP/\d(?:\.\d)?)[:= (]*|Azure Error: \[\w*\] )(\d{3})\b",
    re.IGNORECASE,
)
_ERROR_NAME = re.compile(r"(?:AWS Error |google::cloud::Status\(|^)(\w+)")


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed a little later: throttling, a server error, a lost connection, EIO."""
    if isinstance(
        error, FileNotFoundError | PermissionError | FileExistsError | IsADirectoryError | NotADirectoryError
    ):
        return False
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if "LeaseAlreadyPresent" in str(error):  # pyarrow leases an Azure blob briefly while it deletes it
        return True
    status = http_status(error)
    if status is not None:
        return status in _TRANSIENT_STATUSES
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _TRANSIENT_ERRNOS
    if isinstance(error, _PERMANENT_ERROR_TYPES) or type(error).__name__ in _PERMANENT_ERROR_NAMES:
        return False
    return not any(name in _PERMANENT_ERROR_NAMES for name in _ERROR_NAME.findall(str(error)))


def is_access_denied(error: BaseException) -> bool:
    """Whether the store denied access, with or without credentials."""
    names = {type(error).__name__, *_ERROR_NAME.findall(str(error))}
    return (
        isinstance(error, PermissionError)
        or http_status(error) in (401, 403)
        or bool(names & {"PermissionDeniedError", "UnauthenticatedError", "ACCESS_DENIED", "PERMISSION_DENIED"})
    )


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of the server's response, if the error has one."""
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    for value in (status, *(getattr(error, name, None) for name in ("status", "status_code", "code"))):
        if isinstance(value, int) and 400 <= value < 600:
            return value
    match = _STATUS.search(str(error))
    return int(match.group(1)) if match and 400 <= int(match.group(1)) < 600 else None


def summarize_error(error: BaseException) -> str:
    """Return the first line of a library's message, without internal details."""
    text = str(error).strip().partition("\n\nDebug source")[0]
    code, message = re.search(r"<Code>(.*?)</Code>", text), re.search(r"<Message>(.*?)</Message>", text)
    if code is not None:
        text = text.partition("<?xml")[0].partition("<Error>")[0].rstrip(" :")
        text = f"{text}: {code.group(1)}" + (f": {message.group(1)}" if message else "")
    line = " ".join(text.split())
    name = type(error).__name__
    return f"{name}: {line[:500]}" if name not in ("OSError", "GenericError", "StorageError") else line[:500]
