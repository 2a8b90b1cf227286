"""Real servers of object stores for a session of tests, each a process of its own; run as a script, this is one.

A server ends when its standard input does, so it never outlives the tests.
"""

import contextlib
import functools
import http.client
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

BUCKET = "bucket"
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Published with azurite, the same for everybody."""


@dataclass(frozen=True)
class Server:
    port: int
    pid: int = 0

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    with run_s3_server() as server:
        yield server


@contextlib.contextmanager
def run_s3_server() -> Iterator[Server]:
    """moto, with one empty bucket."""
    with _running("s3") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        connection.close()
        yield server


@pytest.fixture(scope="module")
def s3fs_filesystem(s3_server: Server) -> Iterator[Any]:
    """s3fs on that server."""
    import s3fs

    filesystem = s3fs.S3FileSystem(
        key="test",
        secret="test",
        endpoint_url=f"http://{s3_server.authority}",
        client_kwargs={"region_name": "us-east-1"},
        skip_instance_cache=True,
    )
    filesystem.connect()
    yield filesystem
    s3fs.S3FileSystem.close_session(filesystem.loop, filesystem._s3)


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Server]:
    """gcp-storage-emulator, with one empty bucket."""
    with _running("gcs") as server:
        yield server


@pytest.fixture
def s3_environment(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The usual variables lead to the server, in this process and in those that it starts."""
    for name, value in s3_variables(s3_server.authority).items():
        monkeypatch.setenv(name, value)
    return s3_server


def s3_variables(authority: str) -> dict[str, str]:
    account = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    return {**account, "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": f"http://{authority}"}


def azure_path(container: str = BUCKET, key: str = AZURITE_KEY) -> Callable[[str], str]:
    """The address of what lies below a prefix, in the azurite that somebody has started. It has the one container."""
    endpoint = os.environ.get("PACELINE_TEST_AZURITE")
    if not endpoint:
        pytest.skip("PACELINE_TEST_AZURITE is not set: Azure was not checked")
    _make_container(endpoint)
    options = f"account_name={AZURITE_ACCOUNT}&account_key={key.replace('+', '%2B')}&endpoint={endpoint}"
    return lambda prefix: f"az://{container}/{prefix}?{options}"


@functools.cache
def _make_container(endpoint: str) -> None:
    from pyarrow.fs import AzureFileSystem

    scheme, _, authority = endpoint.partition("://")
    there = {"blob_storage_authority": authority, "dfs_storage_authority": authority}
    by = {"blob_storage_scheme": scheme, "dfs_storage_scheme": scheme}
    AzureFileSystem(AZURITE_ACCOUNT, account_key=AZURITE_KEY, **there, **by).create_dir(BUCKET)


@contextlib.contextmanager
def _running(kind: str) -> Iterator[Server]:
    command = [sys.executable, "-W", "ignore", __file__, kind]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        yield Server(int(process.stdout.readline()), process.pid)
        process.kill()


def _serve(kind: str, address: str = "127.0.0.1") -> None:
    if kind == "s3":
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
        server.start()
        port = server.get_host_and_port()[1]
    else:
        from gcp_storage_emulator.server import create_server

        server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
        server.start()
        port = server._api._httpd.socket.getsockname()[1]
    print(port, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
