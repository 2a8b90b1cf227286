"""Tokens of clusters, with a server of gRPC in the place of a cluster's head."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from paceline._engine.ray import authentication
from paceline._engine.ray.authentication import check_access, find_exposure, make_exposure_warning
from paceline._engine.ray.ray_private import is_caller_accepted

TOKEN = "3" * 64

RIGHTS = """
import json, os, sys
from pathlib import Path
from paceline._engine.ray.authentication import check_access, require_token_of_new_cluster

address, token = sys.argv[1:]
def attempt():
    try:
        check_access(address)
    except PermissionError as error:
        return str(error)
require_token_of_new_cluster()
file = Path.home() / ".ray" / "auth_token"
made = file.read_text()
found = [os.environ["RAY_AUTH_MODE"], len(made), file.stat().st_mode, file.parent.stat().st_mode]
refused = attempt()
file.unlink()
missing = attempt()
os.environ["RAY_AUTH_TOKEN"] = token
print(json.dumps([found, refused, missing, attempt()]))
"""


@pytest.fixture
def head():
    """Starts a server that answers all who have a token, or everybody; returns its port."""
    grpc = pytest.importorskip("grpc")
    servers = []

    def start(token):
        def answer(request, context):
            if token is not None and dict(context.invocation_metadata()).get("authorization") != f"Bearer {token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such token")
            return b"\x0a\x00"

        methods = {"GetClusterId": grpc.unary_unary_rpc_method_handler(answer)}
        server = grpc.server(ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", methods)])
        port = server.add_insecure_port("0.0.0.0:0")
        server.start()
        servers.append(server)
        return port

    yield start
    for server in servers:
        server.stop(0).wait()


def test_a_head_that_asks_for_a_token_is_told_from_one_that_does_not(head, monkeypatch):
    monkeypatch.setenv("RAY_CLIENT_MODE", "0")  # as Ray does when it is imported, for ever
    guarded, exposed = head("4" * 300), head(None)
    accepted = [is_caller_accepted(f"127.0.0.1:{guarded}", token, 20) for token in (None, TOKEN, "4" * 300)]
    assert accepted == [False, False, True]
    assert is_caller_accepted(f"127.0.0.1:{exposed}", None, 20) is True
    assert is_caller_accepted("127.0.0.1:1", None, 20) is None
    check_access(f"127.0.0.1:{exposed}")
    with pytest.raises(PermissionError, match="asks for a token, and RAY_AUTH_MODE is not 'token'\n\nhint: "):
        check_access(f"127.0.0.1:{guarded}")

    monkeypatch.setattr(authentication, "_warned", set())
    assert find_exposure(f"127.0.0.1:{exposed}") is None, "no other machine reaches it"
    addresses = [
        each.address for all in psutil.net_if_addrs().values() for each in all if each.family.name == "AF_INET"
    ]
    for address in [each for each in addresses if not each.startswith("127.")][:1]:
        assert find_exposure(f"{address}:{guarded}") is None
        warning = make_exposure_warning(f"{address}:{exposed}")
        assert warning.startswith(f"warning: the Ray cluster at {address}:{exposed} requires no token: ")
        assert "RAY_AUTH_MODE=token" in warning
        assert make_exposure_warning(f"{address}:{exposed}") is None, "once is enough"
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        assert find_exposure(f"{address}:{exposed}") is None


def test_a_new_cluster_gets_a_token_that_only_its_owner_can_read_and_a_wrong_one_is_named(head, tmp_path):
    address = f"127.0.0.1:{head(TOKEN)}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", RIGHTS, address, TOKEN]
    ended = subprocess.run(command, capture_output=True, text=True, env={**environ, "HOME": str(tmp_path)})
    assert ended.returncode == 0, ended.stderr
    (mode, length, of_file, of_folder), refused, missing, accepted = json.loads(ended.stdout)
    assert (mode, length, stat.S_IMODE(of_file), stat.S_IMODE(of_folder)) == ("token", 64, 0o600, 0o700)
    file = tmp_path / ".ray" / "auth_token"
    assert refused.startswith(f"the Ray cluster at {address} refuses the token in {file}\n\nhint: ")
    assert missing.startswith(f"the Ray cluster at {address} asks for a token, and {file} has none\n\nhint: ")
    assert accepted is None
