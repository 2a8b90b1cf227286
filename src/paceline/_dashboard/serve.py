"""The `paceline dashboard` command: runs the server until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING, Any

from paceline._dashboard.access_gate import AllowedHosts, is_loopback

if TYPE_CHECKING:
    from paceline._dashboard.live_updates import LiveUpdates
    from paceline._view.listing import OpenSearch

PORT = 8265
NICE = 10
"""Low priority: training on this machine comes first."""
_SHUTDOWN_TIMEOUT_S = 2
_MAX_CONNECTIONS = 256


def serve(
    root: str,
    open_search: OpenSearch,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    control: bool = False,
    open_browser: bool = True,
) -> int:
    """Serve the runs below a path until Ctrl-C; return the exit code of the command.

    `port`: None for 8265 or, if that is taken, any free port; 0 for any free port. `token`: None for a random one. The
    only line on standard output is the address to open.
    """
    uvicorn = _import_uvicorn()
    from paceline._dashboard.app import create_dashboard
    from paceline._view.listing import Listing

    if token is not None and re.fullmatch(r"[A-Za-z0-9_.~-]{16,}", token) is None:
        raise ValueError("token must have at least 16 characters: letters, digits and - _ . ~")
    token = token or secrets.token_urlsafe(24)
    listener = _make_listener(host, port)
    actual: int = listener.getsockname()[1]
    machine: tuple[str, ...] = ()
    if not is_loopback(host.strip("[]")):
        machine = (socket.gethostname(), socket.getfqdn())
        print(
            f"warning: {host} can be reached from other machines, without encryption: anybody who sees the "
            "token can see all runs" + (" and stop them" if control else "") + "\n\n"
            "hint: omit --host, and use `ssh -L` from other machines; see docs/watching/dashboard.md",
            file=sys.stderr,
        )
    names = AllowedHosts.from_host(host, machine)
    # Do not show the options of an address: they may contain keys.
    shown_root = root.partition("?")[0] if "://" in root else root
    app, live = create_dashboard(
        lambda: Listing(root, open_search), shown_root, token=token, names=names, port=actual, allow_control=control
    )
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )
    url = f"http://{_url_host(host)}:{actual}/?token={token}"
    print(url, flush=True)
    if open_browser:
        # In a thread, since some browsers are commands that end only when their window closes. And before the server
        # lowers its priority.
        threading.Thread(target=_open_browser, args=(url,), daemon=True).start()
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with listener, contextlib.suppress(KeyboardInterrupt):
        _make_server(uvicorn, config, live).run(sockets=[listener])
    return 0


def _open_browser(url: str) -> None:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return  # No browser on this machine; the address is printed.
    # A browser of exactly this type would show the page in our own terminal.
    if type(browser) is not webbrowser.GenericBrowser:
        browser.open(url)


def _make_server(uvicorn: Any, config: Any, live: LiveUpdates) -> Any:
    class Server(uvicorn.Server):  # type: ignore[misc]
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Or the shutdown would wait for pages that listen for events.
            live.close()
            await super().shutdown(sockets)

    return Server(config)


def _make_listener(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [PORT, 0] if port is None else [port]
    for number in tried:
        # With an explicit protocol, asyncio sends small responses at once; otherwise they wait for the client's ACK.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host.strip("[]"), number))
            # Whoever reads the address may use it at once.
            listener.listen(128)
        except OSError as error:
            listener.close()
            if number == tried[-1]:
                raise OSError(
                    error.errno,
                    f"cannot listen at {host}, port {number}: {error.strerror}\n\nhint: --port 0 selects a free port",
                ) from None
        else:
            return listener
    raise AssertionError("no port was tried")


def _url_host(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
    return f"[{host}]" if ":" in host else host


def _import_uvicorn() -> Any:
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f'the dashboard needs {missing.name}, which is not installed\n\nhint: pip install "paceline[dashboard]"',
            name=missing.name,
        ) from None
    return uvicorn
