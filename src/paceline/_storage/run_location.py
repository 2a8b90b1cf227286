"""Where a run is stored: a directory of this machine, or a prefix of a store and a local spool directory.

A plain value; it touches and imports nothing until one of its `open_*` methods is called.
"""

from __future__ import annotations

import functools
import posixpath
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._core import settings
from paceline._storage.run_layout import RunLayout

if TYPE_CHECKING:
    from paceline._storage.controller_registry import ControllerRegistry
    from paceline._storage.files import Files
    from paceline._storage.lease import Fence, LeaseStore
    from paceline._storage.mailbox import Mailbox
    from paceline._storage.run_store import RunStore
    from paceline._storage.store import Store


_CONTACT_TIMEOUT_S = 10.0
"""How long to try to reach a store that has never answered: most likely an address or a setting is wrong."""


@functools.lru_cache(maxsize=64)  # A run asks often, and a search has thousands of runs.
def _local_layout(storage_path: str, name: str) -> RunLayout:
    return RunLayout(Path(storage_path) / name)


def is_remote(storage_path: str, filesystem: Any = None) -> bool:
    """Whether this is a store and not a directory of this machine."""
    if filesystem is not None:
        return getattr(filesystem, "type_name", None) != "local"
    scheme, separator, _ = storage_path.partition("://")
    return bool(separator) and scheme != "file"


def join_storage_path(storage_path: str, name: str) -> str:
    """Join a storage path and a name; options stay at the end."""
    path, mark, options = storage_path.partition("?") if "://" in storage_path else (storage_path, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


@dataclass(frozen=True)
class RunLocation:
    storage_path: str
    name: str
    filesystem: Any = None
    store: Store | None = field(default=None, compare=False, repr=False)
    """An open store for all who use this value; None: each opens its own."""

    def share_store(self) -> RunLocation:
        """Open the store once: all who use the returned value notice together that it is gone, and when it is back."""
        return self if self.address is None else replace(self, store=self.open_store())

    @classmethod
    def from_path(cls, path: str, filesystem: Any = None) -> RunLocation:
        """Make the location of a run from its full path."""
        if not is_remote(path, filesystem):
            root = Path(path.removeprefix("file://")).expanduser().absolute()
            return cls(str(root.parent), root.name)
        path, mark, options = path.partition("?")
        parent, name = posixpath.split(path.rstrip("/"))
        return cls(f"{parent}{mark}{options}", name, filesystem)

    @property
    def address(self) -> str | None:
        """Address of the store; None for a directory of this machine."""
        is_in_store = is_remote(self.storage_path, self.filesystem)
        return join_storage_path(self.storage_path, self.name) if is_in_store else None

    @property
    def uri(self) -> str:
        return self.open_store().uri if self.address is not None else str(Path(self.storage_path) / self.name)

    @property
    def layout(self) -> RunLayout:
        if self.address is None:
            return _local_layout(self.storage_path, self.name)
        import hashlib

        kind = getattr(self.filesystem, "type_name", type(self.filesystem).__name__)
        digest = hashlib.sha256(f"{kind} {self.storage_path.partition('?')[0]}".encode()).hexdigest()
        return RunLayout(settings.spool_root() / digest[:12] / self.name)

    def open_lease_store(self) -> LeaseStore:
        """Open the lease's store. Raises if the run cannot be stored here."""
        from paceline._storage.lease_stores import DiskLeaseStore, RemoteLeaseStore

        if self.address is None:
            return DiskLeaseStore(self.layout.lease)
        return RemoteLeaseStore(self.open_store(), self.name)

    def open_controller_registry(self) -> ControllerRegistry:
        from paceline._storage.controller_registry import DiskControllerRegistry, RemoteControllerRegistry

        if self.address is None:
            return DiskControllerRegistry(self.layout.controller)
        return RemoteControllerRegistry(self.open_store())

    def open_mailboxes(self) -> tuple[Mailbox, Mailbox | None]:
        """Open the mailboxes of the driver: on its own machine and, for a run in a store, from anywhere."""
        from paceline._storage.mailbox import DiskMailbox, RemoteMailbox

        local = DiskMailbox(self.layout.requests)
        return local, RemoteMailbox(self.open_store) if self.address is not None else None

    def open_run_store(self, files: Files, *, is_new: bool, fence: Fence) -> RunStore:
        """Open the run for the driver that holds the lease.

        `is_new`: this is the run's first driver, so any files in the spool belong to another run and are removed.
        """
        from paceline._storage.journal_segments import open_stored_journal
        from paceline._storage.run_store import DiskRunStore, RemoteRunStore

        if self.address is None:
            return DiskRunStore(files, self.layout)
        layout, store = self.layout, self.open_store()
        if is_new:
            fence.check()
            files.remove_tree(layout.root)
            files.make_dir(layout.root)
        return RemoteRunStore(
            store,
            layout,
            journal_uploader=open_stored_journal(store, files, layout.journal, fence),
            files=files,
            reopen=replace(self, store=None).open_run_store_for_reading,
        )

    def open_run_store_for_reading(self) -> RunStore:
        """Open the run without changing anything."""
        from paceline._storage.files import LocalFiles
        from paceline._storage.run_store import DiskRunStore, RemoteRunStore

        if self.address is None:
            return DiskRunStore(LocalFiles(), self.layout)
        return RemoteRunStore(
            self.open_store(), self.layout, reopen=replace(self, store=None).open_run_store_for_reading
        )

    def open_store(self) -> Store:
        """Open the store of the run; only if `address` is not None."""
        from paceline._storage.address import open_store_at
        from paceline._storage.retrying_store import StoreRetryPolicy

        assert self.address is not None
        if self.store is not None:
            return self.store
        retry_policy = StoreRetryPolicy(
            stall_timeout_s=settings.load().storage_patience_s, contact_timeout_s=_CONTACT_TIMEOUT_S
        )
        return open_store_at(self.address, self.filesystem, retry_policy)
