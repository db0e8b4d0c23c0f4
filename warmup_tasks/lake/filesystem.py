"""The file system under the lake, through fsspec: where a URI leads, and creating a file only if it is absent.

Here lives everything that differs between a local folder, memory and object storage. No manifests, no tables.
"""

import contextlib
import errno
import os
import threading
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

_IN_PROCESS = threading.Lock()  # an in-memory file system checks and creates in two steps


class Files:
    """One root on one file system; all paths that go in and out are relative to it."""

    def __init__(self, uri: str) -> None:
        self.fs, root = fsspec.core.url_to_fs(uri, use_listings_cache=False)
        self.root: str = root.rstrip("/")
        self.is_local = isinstance(self.fs, LocalFileSystem)

    def address(self, path: str) -> str:
        """Return the address under which DuckDB and others find a file: a local path, or one with its protocol."""
        full = f"{self.root}/{path}"
        return full if self.is_local else str(self.fs.unstrip_protocol(full))

    def read(self, path: str) -> bytes:
        """Return a file's bytes; ``FileNotFoundError`` when absent."""
        return bytes(self.fs.cat_file(f"{self.root}/{path}"))

    def open(self, path: str, mode: str) -> Any:
        """Open a file, creating its folders for writing."""
        full = f"{self.root}/{path}"
        if "w" in mode:
            self.fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)
        return self.fs.open(full, mode)

    def create(self, path: str, data: bytes) -> bool:
        """Create a file whole, if it is absent; False when another stands there already."""
        full = f"{self.root}/{path}"
        self.fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)
        try:
            if self.is_local:
                _create_local(Path(full), data)
            else:
                with _IN_PROCESS:
                    self.fs.pipe_file(full, data, mode="create")
        except FileExistsError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none when the folder is absent."""
        try:
            found = self.fs.ls(f"{self.root}/{folder}" if folder else self.root, detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)

    def walk(self) -> list[str]:
        """Return every file below the root."""
        prefix = len(self.root) + 1
        return sorted(str(path)[prefix:] for path in self.fs.find(self.root))

    def modified(self, path: str) -> datetime:
        """Return when a file was written, in UTC."""
        when: datetime = self.fs.modified(f"{self.root}/{path}")
        return when.astimezone(UTC)

    def remove(self, path: str) -> None:
        """Remove a file; one that is gone already is as good."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(f"{self.root}/{path}")


def _create_local(path: Path, data: bytes) -> None:
    """Create a file in one step: seen whole or not at all; of two writers one gets ``FileExistsError``."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        draft.write_bytes(data)
        os.link(draft, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        with path.open("xb") as file:  # a file system without hard links
            file.write(data)
    finally:
        draft.unlink(missing_ok=True)
