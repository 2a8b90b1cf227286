"""`paceline dashboard`: the server, from the first word on the terminal to Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING, Any

from paceline._dashboard.gate import Names, is_loopback

if TYPE_CHECKING:
    from paceline._dashboard.live import Live

PORT = 8265
NICE = 10
"""The server gives way: what trains on this machine comes first."""
_CLOSES_WITHIN_S = 2
_MOST_CONNECTIONS = 256


def serve(
    root: str,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    control: bool = False,
    open_browser: bool = True,
) -> int:
    """Show the runs below a path until Ctrl-C; the exit code of the command.

    `port`: None for 8265 or, if that is taken, any that is free; 0 for any. `token`: None for a random one. The one
    line on standard output is the address to open.
    """
    uvicorn = _uvicorn()
    from paceline._dashboard.app import dashboard
    from paceline._view.listing import Listing

    _check_token(token)
    token = token or secrets.token_urlsafe(24)
    listener = _listener(host, port)
    actual: int = listener.getsockname()[1]
    machine: tuple[str, ...] = ()
    if not is_loopback(host.strip("[]")):
        machine = (socket.gethostname(), socket.getfqdn())
        print(
            f"warning: {host} can be reached from other machines, and what is sent is not encrypted: whoever sees the "
            "token can see all runs" + (" and stop them" if control else "") + "\n\n"
            "hint: leave --host out, and use `ssh -L` from elsewhere; see docs/watching/dashboard.md",
            file=sys.stderr,
        )
    names = Names.of_host(host, machine)
    # The options of an address are nobody's business: there may be keys among them.
    shown = root.partition("?")[0] if "://" in root else root
    site = dashboard(lambda: Listing(root), shown, token=token, names=names, port=actual, allow_control=control)
    config = uvicorn.Config(
        site.app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_CLOSES_WITHIN_S,
    )
    url = f"http://{_shown(host)}:{actual}/?token={token}"
    print(url, flush=True)
    if open_browser:
        # Beside the server: some browsers are commands that end when their window does. And before it gives way.
        threading.Thread(target=_open, args=(url,), daemon=True).start()
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with listener, contextlib.suppress(KeyboardInterrupt):
        _server(uvicorn, config, site.live).run(sockets=[listener])
    return 0


def _open(url: str) -> None:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return  # There is none on this machine; the address is printed.
    # One of this exact type would show the page in our own terminal.
    if type(browser) is not webbrowser.GenericBrowser:
        browser.open(url)


def _server(uvicorn: Any, config: Any, live: Live) -> Any:
    class Server(uvicorn.Server):  # type: ignore[misc]
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Pages that listen for events would be waited for.
            live.close()
            await super().shutdown(sockets)

    return Server(config)


def _listener(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [PORT, 0] if port is None else [port]
    for number in tried:
        # With the protocol named, asyncio sends small answers at once; without, they wait for the client's word.
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
                    f"the dashboard cannot listen at {host}, port {number}: {error.strerror}\n\n"
                    "hint: --port 0 takes one that is free",
                ) from None
        else:
            return listener
    raise AssertionError("no port was tried")


def _shown(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
    return f"[{host}]" if ":" in host else host


def _check_token(token: str | None) -> None:
    if token is None:
        return
    if len(token) < 16 or not all(char.isascii() and (char.isalnum() or char in "-_.~") for char in token):
        raise ValueError("a token has at least 16 characters, out of letters, digits and - _ . ~")


def _uvicorn() -> Any:
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f'the dashboard needs {missing.name}, which is not installed\n\nhint: pip install "paceline[dashboard]"',
            name=missing.name,
        ) from None
    return uvicorn
