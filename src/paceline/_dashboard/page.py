"""The prebuilt page: its three files, as they lie in this package."""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources

_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
}
NAMES = tuple(_TYPES)


@dataclass(frozen=True)
class PageFile:
    data: bytes
    media_type: str

    @property
    def compressed(self) -> bytes:
        return _compressed(self.data)

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.data).hexdigest()[:24]}"'


@functools.lru_cache(maxsize=len(NAMES))
def _compressed(data: bytes) -> bytes:
    return gzip.compress(data, 6, mtime=0)


def page_file(name: str) -> PageFile:
    return PageFile((resources.files(__package__) / "page" / name).read_bytes(), _TYPES[name])
