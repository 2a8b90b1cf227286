"""Where a run is kept: a directory of this machine, or a prefix of a store and a spool directory beside it.

A value; nothing is touched or imported before it is asked for a slot or a depot.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._core import settings
from paceline._storage.layout import Layout

if TYPE_CHECKING:
    from paceline._storage.depot import Depot
    from paceline._storage.desk import Desk
    from paceline._storage.files import Files
    from paceline._storage.lease import Slot
    from paceline._storage.mailbox import Mailbox
    from paceline._storage.store import Store


def is_remote(storage_path: str, filesystem: Any = None) -> bool:
    """Whether this is a store, and not a directory of this machine."""
    if filesystem is not None:
        return getattr(filesystem, "type_name", None) != "local"
    scheme, separator, _ = storage_path.partition("://")
    return bool(separator) and scheme != "file"


def joined(storage_path: str, name: str) -> str:
    """A path below another; options stay at the end."""
    path, mark, options = storage_path.partition("?") if "://" in storage_path else (storage_path, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


@dataclass(frozen=True)
class Home:
    storage_path: str
    name: str
    filesystem: Any = None

    @classmethod
    def of_path(cls, path: str, filesystem: Any = None) -> Home:
        """Of a run whose whole path is known."""
        if not is_remote(path, filesystem):
            root = Path(path.removeprefix("file://")).expanduser().absolute()
            return cls(str(root.parent), root.name)
        path, mark, options = path.partition("?")
        parent, name = posixpath.split(path.rstrip("/"))
        return cls(f"{parent}{mark}{options}", name, filesystem)

    @property
    def address(self) -> str | None:
        """Of the store; None for a directory of this machine."""
        return joined(self.storage_path, self.name) if is_remote(self.storage_path, self.filesystem) else None

    @property
    def uri(self) -> str:
        return self.store().uri if self.address is not None else str(Path(self.storage_path) / self.name)

    @property
    def layout(self) -> Layout:
        if self.address is None:
            return Layout(Path(self.storage_path) / self.name)
        import hashlib

        kind = getattr(self.filesystem, "type_name", type(self.filesystem).__name__)
        digest = hashlib.sha256(f"{kind} {self.storage_path.partition('?')[0]}".encode()).hexdigest()
        return Layout(settings.spool_root() / digest[:12] / self.name)

    def slot(self) -> Slot:
        """Where the lease lies; whatever keeps the run from being kept here is told by this."""
        from paceline._storage.slots import DiskSlot, StoreSlot

        if self.address is None:
            return DiskSlot(self.layout.lease)
        return StoreSlot(self.store(), self.name)

    def desk(self) -> Desk:
        """Where the controller of a detached run leaves word."""
        from paceline._storage.desk import DiskDesk, StoreDesk

        return DiskDesk(self.layout.controller) if self.address is None else StoreDesk(self.store())

    def mailboxes(self) -> tuple[Mailbox, Mailbox | None]:
        """Where people ask the driver: on its own machine, and, of a run in a store, from anywhere."""
        from paceline._storage.mailbox import DiskMailbox, StoreMailbox

        near = DiskMailbox(self.layout.requests)
        return near, StoreMailbox(self.store) if self.address is not None else None

    def depot(self, files: Files, *, is_new: bool) -> Depot:
        """For the driver that holds the lease. `is_new`: it is the first, so what the spool has is another run's."""
        from paceline._storage.depot import DiskDepot, StoreDepot
        from paceline._storage.segments import Segments, reconciled, stored_journal

        if self.address is None:
            return DiskDepot(files, self.layout)
        layout, store = self.layout, self.store()
        if is_new:
            files.remove_tree(layout.root)
            files.make_dir(layout.root)
        stored = stored_journal(store)
        reconciled(layout.journal, stored)
        segments = Segments(store, layout.journal, len(stored))
        return StoreDepot(store, layout, segments=segments, files=files, reopen=self.depot_to_read)

    def depot_to_read(self) -> Depot:
        """For readers: nothing is changed."""
        from paceline._storage.depot import DiskDepot, StoreDepot
        from paceline._storage.files import LocalFiles

        if self.address is None:
            return DiskDepot(LocalFiles(), self.layout)
        return StoreDepot(self.store(), self.layout, reopen=self.depot_to_read)

    def store(self) -> Store:
        """The store that it is in; only where `address` is one."""
        from paceline._storage.address import store_at
        from paceline._storage.retrying import Patience

        assert self.address is not None
        patience = Patience(no_progress_s=settings.load().storage_patience_s)
        return store_at(self.address, self.filesystem, patience)
