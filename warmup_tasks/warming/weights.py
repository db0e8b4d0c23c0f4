"""The digest of an adapter's files, where this process can read them: the sign that a path holds other weights now."""

import hashlib
from pathlib import Path

_PIECE_BYTES = 1 << 20


def weights_digest(path: str) -> str | None:
    """Return the SHA-256 over names and contents of the files under ``path``; None where they cannot be read here.

    The engine's host sees the path; this process may run elsewhere, and then nothing can be said.
    """
    root = Path(path)
    try:
        files = [root] if root.is_file() else sorted(file for file in root.rglob("*") if file.is_file())
        if not files:
            return None
        whole = hashlib.sha256()
        for file in files:
            name = file.name if file == root else file.relative_to(root).as_posix()
            whole.update(hashlib.sha256(name.encode()).digest() + _file_digest(file))
    except OSError:
        return None
    return whole.hexdigest()


def _file_digest(file: Path) -> bytes:
    content = hashlib.sha256()
    with file.open("rb") as handle:
        while piece := handle.read(_PIECE_BYTES):
            content.update(piece)
    return content.digest()
