"""What kind of trouble an error of a store is: one that may pass, or one that will be the same the next time. Pure.

Every library says it in another way: by an errno, by an attribute with the status, or only in its text.
"""

from __future__ import annotations

import errno
import re

_PASSING = frozenset(
    {
        errno.EIO,
        errno.ETIMEDOUT,
        errno.ECONNRESET,
        errno.ECONNREFUSED,
        errno.ECONNABORTED,
        errno.EPIPE,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ESTALE,
    }
)
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 509})
_LASTING_TYPES = (ValueError, TypeError, AttributeError, LookupError, NotImplementedError, ImportError, MemoryError)
_LASTING_NAMES = frozenset(
    {
        # of obstore and botocore
        *("PermissionDeniedError", "UnauthenticatedError", "NotFoundError", "NotSupportedError", "InvalidPathError"),
        *("PreconditionError", "UnknownConfigurationKeyError", "NoCredentialsError", "ParamValidationError"),
        # of S3, as pyarrow tells it
        *("ACCESS_DENIED", "NO_SUCH_BUCKET", "NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "VALIDATION", "INVALID_SIGNATURE"),
        *("INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT"),
        "MISSING_AUTHENTICATION_TOKEN",
        # of GCS
        *("PERMISSION_DENIED", "UNAUTHENTICATED", "NOT_FOUND", "INVALID_ARGUMENT", "FAILED_PRECONDITION"),
        *("OUT_OF_RANGE", "UNIMPLEMENTED", "ALREADY_EXISTS"),
        # of ours
        "NoSuchBucket",
    }
)
_STATUS = re.compile(
    r"(?:(?:HTTP status(?: code)?|status code|status|HTTP/\d(?:\.\d)?)[:= (]*|Azure Error: \[\w*\] )(\d{3})\b",
    re.IGNORECASE,
)
_NAMED = re.compile(r"(?:AWS Error |google::cloud::Status\(|^)(\w+)")


def may_pass(error: BaseException) -> bool:
    """Whether the same call may succeed a little later: throttling, a server's own fault, a lost connection, EIO."""
    if isinstance(
        error, FileNotFoundError | PermissionError | FileExistsError | IsADirectoryError | NotADirectoryError
    ):
        return False
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if "LeaseAlreadyPresent" in str(error):  # pyarrow leases a blob of Azure for the moment in which it deletes it
        return True
    status = http_status(error)
    if status is not None:
        return status in _PASSING_STATUS
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _PASSING
    if isinstance(error, _LASTING_TYPES) or type(error).__name__ in _LASTING_NAMES:
        return False
    return not any(name in _LASTING_NAMES for name in _NAMED.findall(str(error)))


def is_refusal(error: BaseException) -> bool:
    """Whether the store knows who we are, or not, and will not let us."""
    names = {type(error).__name__, *_NAMED.findall(str(error))}
    return (
        isinstance(error, PermissionError)
        or http_status(error) in (401, 403)
        or bool(names & {"PermissionDeniedError", "UnauthenticatedError", "ACCESS_DENIED", "PERMISSION_DENIED"})
    )


def http_status(error: BaseException) -> int | None:
    """The status that the server answered with, where the error tells it."""
    response = getattr(error, "response", None)
    told = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    for value in (told, *(getattr(error, name, None) for name in ("status", "status_code", "code"))):
        if isinstance(value, int) and 400 <= value < 600:
            return value
    found = _STATUS.search(str(error))
    return int(found.group(1)) if found and 400 <= int(found.group(1)) < 600 else None


def in_short(error: BaseException) -> str:
    """The first line of what a library says, without what only its authors want to know."""
    text = str(error).strip().partition("\n\nDebug source")[0]
    code, message = re.search(r"<Code>(.*?)</Code>", text), re.search(r"<Message>(.*?)</Message>", text)
    if code is not None:
        text = text.partition("<?xml")[0].partition("<Error>")[0].rstrip(" :")
        text = f"{text}: {code.group(1)}" + (f": {message.group(1)}" if message else "")
    line = " ".join(text.split())
    name = type(error).__name__
    return f"{name}: {line[:500]}" if name not in ("OSError", "GenericError", "StorageError") else line[:500]
