"""Ray's token authentication: a cluster that we start asks for a token, one that asks for it gets the right error, and
one that does not ask, though other machines reach it, gets a warning.

`RAY_AUTH_MODE` says what the user wants, and is never changed if it is set. Ray reads it once, when it is imported.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import sys
import threading
from pathlib import Path

from paceline._core.system import make_private_dirs, open_private
from paceline._engine.ray import ray_private

_TIMEOUT_S = 5.0
_FIRST_BY_ITSELF = (2, 59)
"""The first version of Ray whose `ray.init()` starts clusters that ask for a token without being told."""
ADVICE = "start it with RAY_AUTH_MODE=token, and set it here, too; or with RAY_AUTH_MODE=disabled on a trusted network"

_lock = threading.Lock()
_warned: set[str] = set()
"""Addresses of clusters; a process is told once about each."""


def require_token_of_new_cluster() -> None:
    """Let a cluster that `ray.init()` is about to start on this machine ask for a token.

    A later version does so by itself. Once Ray is imported, it is too late.
    """
    if "RAY_AUTH_MODE" not in os.environ:
        if ray_private.get_ray_version() < _FIRST_BY_ITSELF:
            if "ray" in sys.modules:
                return
            os.environ["RAY_AUTH_MODE"] = "token"
        _make_token()


def check_access(address: str) -> None:
    """Raise `PermissionError` if the cluster at `host:port` asks for a token that this process does not have."""
    if ray_private.is_caller_accepted(address, None, _TIMEOUT_S) is not False:
        return
    shows_token = ray_private.is_token_mode()
    if shows_token is None:
        return
    if not shows_token:
        raise PermissionError(
            f"the Ray cluster at {address} asks for a token, and RAY_AUTH_MODE is not 'token'\n\n"
            "hint: set RAY_AUTH_MODE=token before Ray is imported, and RAY_AUTH_TOKEN_PATH to a file with the token "
            "of the cluster, which `ray get-auth-token` prints on its head"
        )
    token, source = _find_token()
    if token is None:
        raise PermissionError(
            f"the Ray cluster at {address} asks for a token, and {source} has none\n\n"
            "hint: put the cluster's token there; `ray get-auth-token` prints it on its head"
        )
    if ray_private.is_caller_accepted(address, token, _TIMEOUT_S) is False:
        raise PermissionError(
            f"the Ray cluster at {address} refuses the token in {source}\n\n"
            "hint: use the cluster's own token; `ray get-auth-token` prints it on its head"
        )


def find_exposure(address: str) -> str | None:
    """Return a warning if other machines can reach the cluster at `host:port` and it takes work from anybody."""
    if os.environ.get("RAY_AUTH_MODE") == "disabled" or _is_loopback(address):
        return None
    if ray_private.is_caller_accepted(address, None, _TIMEOUT_S) is not True:
        return None
    return f"the Ray cluster at {address} requires no token: anybody who can reach its ports can run code on it"


def make_exposure_warning(address: str) -> str | None:
    """The same, with what to do about it, the first time that this process asks."""
    with _lock:
        if address in _warned:
            return None
        _warned.add(address)
    exposure = find_exposure(address)
    return f"warning: {exposure} ({ADVICE})" if exposure else None


def _find_token() -> tuple[str | None, str]:
    """The token as Ray finds it, and where it is or should be."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token, "RAY_AUTH_TOKEN"
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(path) if path else _default_file()
    try:
        return file.read_text().strip() or None, str(file)
    except OSError:
        return None, str(file)


def _make_token() -> None:
    """Make a token if there is none, in a file that others cannot read: Ray's own would be readable for all."""
    token, _ = _find_token()
    if token is None and not os.environ.get("RAY_AUTH_TOKEN_PATH"):
        file = _default_file()
        make_private_dirs(file.parent)
        with open(file, "w", opener=open_private) as opened:
            opened.write(secrets.token_hex(32))


def _default_file() -> Path:
    return Path.home() / ".ray" / "auth_token"


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):
        return False
