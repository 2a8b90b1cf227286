"""Opens a store from `storage_path` and `storage_filesystem`.

    s3://bucket/runs?region=eu-west-1&endpoint_override=localhost:9000&scheme=http
    gs://bucket/runs      az://container/runs      abfs://...      anything that pyarrow or fsspec opens

The options are those of pyarrow's own URIs. Defaults come from the environment variables of each cloud's own tools.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from paceline._core import settings
from paceline._core.errors import StorageError
from paceline._storage.arrow_store import ArrowStore
from paceline._storage.object_store import ObjectStore
from paceline._storage.retrying_store import RetryingStore, StoreRetryPolicy, contact_hint
from paceline._storage.store import Store
from paceline._storage.store_errors import summarize_error

log = logging.getLogger("paceline")

_CLIENT_OPTIONS = {"timeout": "300s", "connect_timeout": "10s"}
_GCS_RETRY_LIMIT = timedelta(seconds=20)
"""Retry limit for pyarrow's client, which would otherwise retry silently for fifteen minutes."""
_S3_MAX_ATTEMPTS = 5
"""Attempts of pyarrow's client where no `RetryingStore` wraps it."""


def open_store_at(
    storage_path: str, filesystem: Any = None, retry_policy: StoreRetryPolicy | None = None
) -> RetryingStore:
    """Return the store at a path. Does not contact it yet. Without a policy, it is as patient as the settings say."""
    if retry_policy is None:
        retry_policy = StoreRetryPolicy(stall_timeout_s=settings.load().storage_patience_s)
    try:
        store = _open_bare_store(storage_path, filesystem)
    except (ValueError, TypeError, ImportError):
        raise
    except Exception as error:
        uri = _StoreAddress.parse(storage_path, {}).uri
        raise StorageError(f"cannot open {uri}: {summarize_error(error)}\n\nhint: {contact_hint(uri)}") from error
    return RetryingStore(store, retry_policy)


def _open_bare_store(storage_path: str, filesystem: Any) -> Store:
    if filesystem is not None:
        arrow = to_arrow_filesystem(filesystem)
        path = storage_path.partition("://")[2] or storage_path
        return ArrowStore(arrow, path, storage_path if "://" in storage_path else f"{arrow.type_name}://{path}")
    address = _StoreAddress.parse(storage_path, dict(os.environ))
    match address.scheme:
        case "s3" | "s3a":
            return _s3(address)
        case "az" | "abfs" | "abfss":
            return _az(address)
        case "gs" | "gcs":
            return ArrowStore(_gcs_filesystem(address), f"{address.host}/{address.path}", address.uri)
    return ArrowStore(*_other_filesystem(address), address.uri)


def resolve_filesystem(address: str, argument: str) -> tuple[Any, str]:
    """Return the `pyarrow.fs.FileSystem` for an address and the path on it; `argument` names the address in errors."""
    parsed = _StoreAddress.parse(address, dict(os.environ), argument)
    match parsed.scheme:
        case "s3" | "s3a":
            filesystem, bucket = _s3_filesystem(parsed, _s3_region(parsed), _S3_MAX_ATTEMPTS), parsed.host
        case "gs" | "gcs":
            filesystem, bucket = _gcs_filesystem(parsed), parsed.host
        case "az" | "abfs" | "abfss":
            account, bucket, key = _azure_account(parsed)
            filesystem = _azure_filesystem(parsed, account, key)
        case _:
            return _other_filesystem(parsed)
    return filesystem, f"{bucket}/{parsed.path}".rstrip("/")


def to_arrow_filesystem(filesystem: Any, argument: str = "storage_filesystem") -> Any:
    """Return a `pyarrow.fs.FileSystem`; wraps an fsspec filesystem."""
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    if isinstance(filesystem, FileSystem):
        return filesystem
    if hasattr(filesystem, "_strip_protocol") and hasattr(filesystem, "ls"):
        return PyFileSystem(FSSpecHandler(filesystem))
    raise ValueError(f"{argument} must be a filesystem of pyarrow or fsspec, got {filesystem!r}")


@dataclass(frozen=True)
class _StoreAddress:
    scheme: str
    user: str
    password: str
    host: str
    path: str
    options: dict[str, str]
    variables: Mapping[str, str]
    """The environment; only the clouds' own variables are read."""
    text: str
    argument: str = "storage_path"
    """The caller's name for the address, used in errors."""

    @classmethod
    def parse(cls, text: str, variables: Mapping[str, str], argument: str = "storage_path") -> _StoreAddress:
        parts = urlsplit(text)
        host = parts.netloc.rpartition("@")[2]
        return cls(
            scheme=parts.scheme,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            host=host,
            path=unquote(parts.path).strip("/"),
            options=dict(parse_qsl(parts.query)),
            variables=variables,
            text=text,
            argument=argument,
        )

    def variable(self, name: str) -> str | None:
        return self.variables.get(name) or None

    @property
    def uri(self) -> str:
        """The address for display, without credentials and options."""
        return f"{self.scheme}://{self.host}/{self.path}".rstrip("/")

    def endpoint(self, default: str | None, scheme: str = "https") -> tuple[str, str] | None:
        """Return (scheme, host and port) of a custom server, or None for the cloud's own."""
        endpoint = self.options.get("endpoint_override") or default
        if not endpoint:
            return None
        own_scheme, separator, rest = endpoint.partition("://")
        if not separator:
            return self.options.get("scheme", scheme), endpoint.rstrip("/")
        return own_scheme, rest.rstrip("/")


def _s3(address: _StoreAddress) -> Store:
    bucket, region, endpoint = address.host, _s3_region(address), _s3_endpoint(address)
    path = f"{bucket}/{address.path}".rstrip("/")
    # Only `RetryingStore` retries: two retry layers would multiply.
    filesystem = partial(_s3_filesystem, address, region, max_attempts=1)
    credentials = _s3_credentials(address, _is_anonymous(address))
    if find_spec("obstore") is None or credentials is None:
        return ArrowStore(filesystem(), path, address.uri)

    def make_client(**more: Any) -> Any:
        from obstore.store import S3Store

        options: dict[str, Any] = {"region": region, "prefix": address.path or None, **credentials}
        if endpoint is not None:
            options |= {"endpoint": f"{endpoint[0]}://{endpoint[1]}", "virtual_hosted_style_request": False}
        client = {**_CLIENT_OPTIONS, "allow_http": endpoint is not None and endpoint[0] == "http"}
        return S3Store(bucket, client_options=client, **options, **more)

    return ObjectStore(make_client, filesystem=filesystem, bucket=bucket, path=path, uri=address.uri)


def _s3_endpoint(address: _StoreAddress) -> tuple[str, str] | None:
    return address.endpoint(address.variable("AWS_ENDPOINT_URL_S3") or address.variable("AWS_ENDPOINT_URL"))


def _s3_region(address: _StoreAddress) -> str:
    known = {"region", "scheme", "endpoint_override", "anonymous", "allow_bucket_creation", "allow_bucket_deletion"}
    _check_options(address, known)
    region = address.options.get("region") or address.variable("AWS_REGION") or address.variable("AWS_DEFAULT_REGION")
    if region or _s3_endpoint(address):
        return region or "us-east-1"
    from pyarrow.fs import resolve_s3_region

    return str(resolve_s3_region(address.host))


def _is_anonymous(address: _StoreAddress) -> bool:
    return address.options.get("anonymous", "").lower() in ("1", "true")


def _s3_filesystem(address: _StoreAddress, region: str, max_attempts: int) -> Any:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    options: dict[str, Any] = {"region": region, "anonymous": _is_anonymous(address), "connect_timeout": 10}
    options["retry_strategy"] = AwsStandardS3RetryStrategy(max_attempts=max_attempts)
    endpoint = _s3_endpoint(address)
    if endpoint is not None:
        options |= {"scheme": endpoint[0], "endpoint_override": endpoint[1]}
    if address.user:
        options |= {"access_key": address.user, "secret_key": address.password}
    # Background writes would hold a whole file in memory when the network is slower than the disk.
    return S3FileSystem(background_writes=False, **options)


def _s3_credentials(address: _StoreAddress, anonymous: bool) -> dict[str, Any] | None:
    """Return the credentials for obstore; None where only pyarrow can sign, since it reads profiles itself."""
    if anonymous:
        return {"skip_signature": True}
    if address.user:
        return {"access_key_id": address.user, "secret_access_key": address.password}
    profiles = address.variable("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials")
    if address.variable("AWS_ACCESS_KEY_ID") or not (address.variable("AWS_PROFILE") or os.path.exists(profiles)):
        return {}
    if find_spec("boto3") is None:
        log.warning("%s: conditional puts need boto3 to read AWS profiles; pip install boto3", address.uri)
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    return {"credential_provider": Boto3CredentialProvider()}


def _gcs_filesystem(address: _StoreAddress) -> Any:
    from pyarrow.fs import GcsFileSystem

    _check_options(address, {"scheme", "endpoint_override", "project_id", "anonymous"})
    endpoint = address.endpoint(address.variable("STORAGE_EMULATOR_HOST"), scheme="http")
    options: dict[str, Any] = {"retry_time_limit": _GCS_RETRY_LIMIT}
    if endpoint is not None:
        options |= {"scheme": endpoint[0], "endpoint_override": endpoint[1]}
    if address.user == "anonymous" or address.options.get("anonymous") or address.variable("STORAGE_EMULATOR_HOST"):
        options["anonymous"] = True
    if "project_id" in address.options:
        options["project_id"] = address.options["project_id"]
    return GcsFileSystem(**options)


def _az(address: _StoreAddress) -> Store:
    account, container, key = _azure_account(address)
    endpoint = address.options.get("endpoint")
    path = f"{container}/{address.path}".rstrip("/")
    filesystem = partial(_azure_filesystem, address, account, key)
    if find_spec("obstore") is None:
        return ArrowStore(filesystem(), path, address.uri)

    def make_client(**more: Any) -> Any:
        from obstore.store import AzureStore

        options: dict[str, Any] = {"account_name": account, "prefix": address.path or None}
        if key:
            options["account_key"] = key
        if endpoint:
            options["endpoint"] = f"{endpoint}/{account}"
        client = {**_CLIENT_OPTIONS, "allow_http": bool(endpoint) and str(endpoint).startswith("http://")}
        return AzureStore(container, client_options=client, **options, **more)

    return ObjectStore(make_client, filesystem=filesystem, bucket=container, path=path, uri=address.uri)


def _azure_account(address: _StoreAddress) -> tuple[str, str, str | None]:
    """Return account, container and key, from `az://container/path` or pyarrow's own `abfs://` forms."""
    _check_options(address, {"account_name", "account_key", "endpoint", "scheme"})
    account = address.options.get("account_name") or address.variable("AZURE_STORAGE_ACCOUNT_NAME")
    key = address.options.get("account_key") or address.variable("AZURE_STORAGE_ACCOUNT_KEY")
    container = address.host
    if address.user and address.host.endswith(".dfs.core.windows.net"):  # abfs://container@account.dfs...
        container, account = address.user, address.host.partition(".")[0]
    if not account:
        raise ValueError(
            f"{address.argument} must name an account, got {address.uri!r}\n\n"
            "hint: set AZURE_STORAGE_ACCOUNT_NAME, or add ?account_name=... to it"
        )
    return account, container, key


def _azure_filesystem(address: _StoreAddress, account: str, key: str | None) -> Any:
    from pyarrow.fs import AzureFileSystem

    options: dict[str, Any] = {"account_key": key}
    endpoint = address.options.get("endpoint")
    if endpoint:
        scheme, _, authority = endpoint.partition("://")
        options |= {"blob_storage_authority": authority, "dfs_storage_authority": authority}
        options |= {"blob_storage_scheme": scheme, "dfs_storage_scheme": scheme}
    return AzureFileSystem(account, **options)


def _other_filesystem(address: _StoreAddress) -> tuple[Any, str]:
    """Open any other filesystem that pyarrow (hdfs) or fsspec supports."""
    import pyarrow
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(address.text)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        if find_spec("fsspec") is None:
            raise ImportError(
                f"{address.argument} {address.uri!r} needs fsspec: pyarrow does not support {address.scheme}://\n\n"
                'hint: pip install "paceline[cloud]"'
            ) from None
        import fsspec

        try:
            fsspec_filesystem, path = fsspec.core.url_to_fs(address.text)
        except ValueError as error:
            raise ValueError(f"cannot open {address.argument} {address.uri!r}: {error}") from None
        filesystem = to_arrow_filesystem(fsspec_filesystem)
    return filesystem, path


def _check_options(address: _StoreAddress, known: set[str]) -> None:
    for name in address.options:
        if name not in known:
            uri = urlunsplit((address.scheme, address.host, f"/{address.path}", "", ""))
            raise ValueError(
                f"unknown option {name!r} of {address.argument} {uri!r}; the options are {', '.join(sorted(known))}"
            )
