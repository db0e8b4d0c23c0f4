"""References and manifests: how a version of a partition is named and described.

Here live the types, their parsing and their digests. No reading, no writing: ``store.py`` does that.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from warmup_tasks.errors import ContractError
from warmup_tasks.identity import canonical_json

MANIFEST_SCHEMA = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def check_name(what: str, name: str) -> str:
    """Return ``name``, or raise ``ContractError`` when it cannot be a folder on every file system."""
    if not _NAME.fullmatch(name):
        raise ContractError(f"{what} {name!r}: use letters, digits and _ . + - only, beginning with a letter or digit")
    return name


class Ref(NamedTuple):
    """A partition, at one version or (version None) at its newest: ``dataset/partition[@000001]``."""

    dataset: str
    partition: str
    version: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parsed reference, or raise ``ContractError``."""
        path, _, version = text.partition("@")
        dataset, slash, partition = path.partition("/")
        if not slash or (version and not version.isdecimal()) or text.endswith("@"):
            raise ContractError(f"{text!r} is no reference; write dataset/partition or dataset/partition@000001")
        number = int(version) if version else None
        return cls(check_name("dataset", dataset), check_name("partition", partition), number)

    def __str__(self) -> str:
        version = "" if self.version is None else f"@{self.version:06d}"
        return f"{self.dataset}/{self.partition}{version}"


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Versioned(BaseModel):
    model_config = ConfigDict(extra="ignore")

    schema_version: int


class DataFile(_Stored):
    """One immutable Parquet file; ``path`` is relative to the lake's root."""

    path: str
    rows: int
    bytes: int
    sha256: str


class TableEntry(_Stored):
    """One table of a partition."""

    files: list[DataFile]
    rows: int
    bytes: int


class Manifest(_Stored):
    """What one version of a partition consists of. ``content_digest`` covers the tables' bytes and the meta data."""

    schema_version: int = MANIFEST_SCHEMA
    dataset: str
    partition: str
    version: int
    content_digest: str
    tables: dict[str, TableEntry]
    meta: dict[str, Any]

    @classmethod
    def parse(cls, data: bytes, where: str) -> Self:
        """Return a stored manifest.

        Raises:
            ContractError: it has another schema version, or is no manifest at all.
        """
        try:
            version = _Versioned.model_validate_json(data).schema_version
            if version != MANIFEST_SCHEMA:
                raise ContractError(
                    f"{where} has schema version {version}, this library reads {MANIFEST_SCHEMA}: "
                    "use the version of warmup-tasks that wrote it, or a newer one"
                )
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise ContractError(f"{where} is no manifest of schema version {MANIFEST_SCHEMA}") from error

    def to_json(self) -> bytes:
        """Return the bytes that are stored."""
        return self.model_dump_json(indent=2).encode()


def content_digest(tables: Mapping[str, TableEntry], meta: Mapping[str, Any]) -> str:
    """Return the digest of a partition's content: equal tables and equal meta data give the same one."""
    content = {name: [file.sha256 for file in entry.files] for name, entry in tables.items()}
    return hashlib.sha256(canonical_json({"tables": content, "meta": dict(meta)})).hexdigest()
