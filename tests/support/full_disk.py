"""A small disk of its own for a folder, that can be filled; only root can mount one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE = "256m"
FILLER = "filler"


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Put a folder on a disk of its own for the length of a block; the value says whether that could be done."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take all the room that is left."""
    with (folder / FILLER).open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(1 << 20)):
                pass
        except OSError:
            return


def free(folder: Path) -> None:
    """Give it back."""
    (folder / FILLER).unlink(missing_ok=True)
