"""The prebuilt page: its three files, shipped in this package."""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources

_MEDIA_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
}
PAGE_FILE_NAMES = tuple(_MEDIA_TYPES)


@dataclass(frozen=True)
class PageFile:
    data: bytes
    media_type: str

    @property
    def gzip_data(self) -> bytes:
        return _gzip(self.data)

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.data).hexdigest()[:24]}"'


@functools.lru_cache(maxsize=len(PAGE_FILE_NAMES))
def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 6, mtime=0)


def load_page_file(name: str) -> PageFile:
    return PageFile((resources.files(__package__) / "page" / name).read_bytes(), _MEDIA_TYPES[name])
