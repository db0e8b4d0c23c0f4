"""Values on their way to Redis: blocks of encoded values, as Arrow columns, so that packing them costs no Python.

A block holds values of one kind and namespace with one life. Here blocks are made, from typed values or straight from
the columns of a Parquet file; sending them lives in ``store.py``, the protocol in ``wire.py``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from warmup_tasks.errors import ContractError, RejectItemError
from warmup_tasks.identity import EmbedderIdentity, embedding_key
from warmup_tasks.items import Reason
from warmup_tasks.serving.namespaces import Namespace
from warmup_tasks.serving.records import CHUNK
from warmup_tasks.serving.values import EmbeddingValue, StoredValue
from warmup_tasks.serving.wire import scalar, total_length

BLOCK_BYTES = 8 << 20  # and at most CHUNK values
_KEY_OVERHEAD_BYTES = 250  # entry in the key space and its expiry, index entry, allocator: measured, rounded up
_BATCH_ROWS = 4 * CHUNK
_HEX = "^[0-9a-f]+$"
_FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Block:
    """Encoded values of one namespace.

    Attributes:
        where: their namespace; every key begins with its prefix.
        ttl_s: their life; None is until invalidated.
        suffixes: what each key says behind the prefix, a binary column.
        values: the pieces of the stored forms, side by side: binary columns, or scalars that all rows share.
    """

    where: Namespace
    ttl_s: int | None
    suffixes: pa.Array
    values: tuple[pa.Array | pa.Scalar, ...]

    def __len__(self) -> int:
        return len(self.suffixes)

    @property
    def keys(self) -> list[str]:
        """The keys."""
        prefix = self.where.prefix
        return [prefix + suffix.decode() for suffix in self.suffixes.to_pylist()]

    def only(self, keys: set[str]) -> "Block":
        """Return the block without the values of other keys."""
        wanted = pa.array([key in keys for key in self.keys], pa.bool_())
        values = tuple(piece if isinstance(piece, pa.Scalar) else piece.filter(wanted) for piece in self.values)
        return Block(self.where, self.ttl_s, self.suffixes.filter(wanted), values)

    @property
    def estimated_bytes(self) -> int:
        """What the values take in Redis, as :func:`estimated_bytes` says."""
        keys = np.asarray(pc.binary_length(self.suffixes)) + len(self.where.prefix)
        values = np.asarray(total_length(self.values)) + np.zeros(len(self), np.int64)
        return int((_allocated(values) + _allocated(keys)).sum()) + len(self) * _KEY_OVERHEAD_BYTES


class BlockSource(Protocol):
    """Values to load: can be read from its beginning again, since a load that lost Redis may have to."""

    @property
    def bytes_by_prefix(self) -> Mapping[str, int]:
        """What all of it takes in Redis, as estimated, by the namespace's prefix."""
        ...

    def __len__(self) -> int:
        """Return the number of values."""
        ...

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks."""
        ...


class ValueBlocks:
    """A source of typed values; of two with one key the last one counts."""

    def __init__(self, values: Sequence[StoredValue]) -> None:
        latest = {value.key: value for value in values}
        groups: dict[tuple[str | int | None, ...], list[tuple[str, StoredValue]]] = {}
        for key, value in latest.items():
            groups.setdefault(value.place, []).append((key, value))
        self._blocks = [block for group in groups.values() for block in _blocks_of(group)]

    @property
    def bytes_by_prefix(self) -> Mapping[str, int]:
        """What all of it takes in Redis, as estimated, by the namespace's prefix."""
        sizes: Counter[str] = Counter()
        for block in self._blocks:
            sizes[block.where.prefix] += block.estimated_bytes
        return sizes

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks)


class EmbeddingFile:
    """The embeddings of one tenant in a Parquet file, streamed: columns ``item_id``, ``prompt_sha256``, ``vector``.

    ``vector`` is a fixed-size list of float32, or the same bytes as fixed-size binary, as long as the embedder says.

    Raises:
        ContractError: a column is missing or has another type.
        RejectItemError: the vectors have another dimension, or hold a value that is no finite number.
    """

    def __init__(
        self, path: str | Path, embedder: EmbedderIdentity, *, tenant: str | None, created_at: datetime
    ) -> None:
        self._path = path
        metadata, schema = pq.read_metadata(path), pq.read_schema(path)
        self._rows = metadata.num_rows
        _check_columns(schema, embedder)
        template = EmbeddingValue.of(
            np.zeros(embedder.dimensions), embedder,
            item_id="!item", tenant=tenant, prompt_sha256="!prompt", created_at=created_at,
        )  # fmt: skip
        # A quotation mark inside a JSON text is escaped, so these places occur once.
        head = template.encode()[: -len(template.vector)]
        before, rest = head.split(b'"item_id":"!item"')
        between, after = rest.split(b'"prompt_sha256":"!prompt"')
        self._head = (before + b'"item_id":"', b'"' + between + b'"prompt_sha256":"', b'"' + after)
        self._where, self._ttl_s = template.where, template.ttl_s
        prefix = self._where.prefix
        self._begin = embedding_key(tenant, embedder, "").removeprefix(prefix).encode()
        size = sum(map(len, self._head)) + 32 + 64 + len(template.vector)
        key = len(prefix) + len(self._begin) + 64
        self._bytes_each = int(_allocated(np.int64(size)) + _allocated(np.int64(key))) + _KEY_OVERHEAD_BYTES

    @property
    def bytes_by_prefix(self) -> Mapping[str, int]:
        """What all of it takes in Redis, as estimated, by the namespace's prefix."""
        return {self._where.prefix: self._rows * self._bytes_each}

    def __len__(self) -> int:
        return int(self._rows)

    def __iter__(self) -> Iterator[Block]:
        columns = ["item_id", "prompt_sha256", "vector"]
        # Mapped and in small batches, memory is used again and again: fresh pages would cost more than decoding.
        with pq.ParquetFile(self._path, memory_map=True, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns, use_threads=False):
                yield from self._blocks(batch)

    def _blocks(self, batch: pa.RecordBatch) -> Iterator[Block]:
        items, prompts = (_hex(batch[name], name) for name in ("item_id", "prompt_sha256"))
        vectors = _vector_bytes(batch["vector"])
        begin, between, end = (scalar(part) for part in self._head)
        suffixes = pc.binary_join_element_wise(scalar(self._begin), prompts, scalar(b""))
        for start in range(0, len(batch), CHUNK):
            item, prompt, vector = (column.slice(start, CHUNK) for column in (items, prompts, vectors))
            values = (begin, item, between, prompt, end, vector)
            yield Block(self._where, self._ttl_s, suffixes.slice(start, CHUNK), values)


def estimated_bytes(value: StoredValue) -> int:
    """Return what a value takes in Redis, key, index entry and the allocator's rounding included."""
    sizes = _allocated(np.asarray([len(value.encode()), len(value.key)]))
    return int(sizes.sum()) + _KEY_OVERHEAD_BYTES


def _blocks_of(group: Sequence[tuple[str, StoredValue]]) -> Iterator[Block]:
    where = group[0][1].where
    prefix, ttl_s = where.prefix, group[0][1].ttl_s
    suffixes: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for key, value in group:
        encoded = value.encode()
        if values and (len(values) == CHUNK or size + len(encoded) > BLOCK_BYTES):
            yield Block(where, ttl_s, pa.array(suffixes, pa.binary()), (pa.array(values, pa.binary()),))
            suffixes, values, size = [], [], 0
        suffixes.append(key.removeprefix(prefix).encode())
        values.append(encoded)
        size += len(encoded)
    yield Block(where, ttl_s, pa.array(suffixes, pa.binary()), (pa.array(values, pa.binary()),))


def _allocated(size: Any) -> Any:
    # Redis' allocator has four sizes between two powers of two.
    step = np.maximum(16, 2 ** np.maximum(0, np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64) - 3))
    return -(-size // step) * step


def _check_columns(schema: pa.Schema, embedder: EmbedderIdentity) -> None:
    missing = [name for name in ("item_id", "prompt_sha256", "vector") if name not in schema.names]
    if missing:
        raise ContractError(f"a file of embeddings needs the columns {', '.join(missing)}")
    kind = schema.field("vector").type
    if pa.types.is_fixed_size_binary(kind):
        dimensions = kind.byte_width / 4
    elif pa.types.is_fixed_size_list(kind) and pa.types.is_float32(kind.value_type):
        dimensions = kind.list_size
    else:
        raise ContractError(f"vector has type {kind}: a fixed-size list of float32 is needed")
    if dimensions != embedder.dimensions:
        raise RejectItemError(
            Reason.DIMENSION_MISMATCH,
            f"{embedder.embedder} has {embedder.dimensions} dimensions, the file's vectors have {dimensions:g}",
        )


def _hex(column: pa.Array, name: str) -> pa.Array:
    if column.null_count or not pc.all(pc.match_substring_regex(column, _HEX)).as_py():
        raise ContractError(f"{name} holds a value that is no lowercase hex text")
    return column.cast(pa.binary())


def _vector_bytes(column: pa.Array) -> pa.Array:
    """Return the vectors as a binary column over the same memory."""
    if column.null_count:
        raise ContractError("vector holds a null")
    if pa.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        flat = np.frombuffer(column.buffers()[1], _FLOAT32, len(column) * width // 4, column.offset * width)
    else:
        width = column.type.list_size * 4
        flat = column.flatten().to_numpy(zero_copy_only=False).astype(_FLOAT32, copy=False)
    with np.errstate(all="ignore"):
        may_be_finite = np.isfinite(flat.sum())  # what is not finite stays so in the sum
    if not may_be_finite and not np.isfinite(flat).all():
        raise RejectItemError(Reason.DIMENSION_MISMATCH, "a vector holds a value that is no finite number")
    ends = np.arange(len(column) + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(ends), pa.py_buffer(flat)])
