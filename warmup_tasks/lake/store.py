"""The lake's one interface: publish, list, read, query, collect.

Publishing writes data files under names that nobody else uses, then creates a manifest, if absent: two publishers of
one partition get two version numbers, and a reader, who reads manifests only, sees a version whole or not at all. What
an interrupted publisher leaves behind is named by no manifest; :meth:`Lake.collect` removes it.
"""

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from warmup_tasks.errors import ContractError
from warmup_tasks.lake import queries
from warmup_tasks.lake.filesystem import Files
from warmup_tasks.lake.manifest import DataFile, Manifest, Ref, TableEntry, check_name, content_digest
from warmup_tasks.lake.selection import Where, read_rows

TableSource: TypeAlias = "pa.Table | pa.RecordBatchReader | Sequence[pa.RecordBatchReader]"
_ROW_GROUP_ROWS = 4_096
_ROW_GROUP_BYTES = 2**26
_FILES_AT_ONCE = 2
_REPEATED_SHARE = 0.5  # of the values in a column; where fewer are repeats, a dictionary costs more than it saves


class _HashingFile:
    """A writable file that keeps digest and length of what passes through."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.sha256, self.bytes, self.closed = inner, hashlib.sha256(), 0, False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.sha256.update(view)
        self.bytes += view.nbytes
        self.inner.write(view)
        return view.nbytes

    def flush(self) -> None:
        self.inner.flush()


class Lake:
    """A lake on a URI: a local folder, or whatever fsspec knows (``memory://``, ``s3://``)."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._files = Files(uri)

    def publish(
        self, dataset: str, partition: str, tables: Mapping[str, TableSource], meta: Mapping[str, Any] | None = None
    ) -> str:
        """Publish a new version of a partition and return its reference, ``dataset/partition@000001``.

        Content that equals the newest version's gives that version's reference and changes nothing, so a task may run
        again. Rows keep their order, which is part of the content: sort them. ``meta`` too is part of the content.

        Args:
            dataset: what the rows are.
            partition: which of them.
            tables: name → Arrow table, or a reader of batches for what does not fit into memory, or several readers,
                whose files are written at the same time; in which file a row stands is part of the content.
            meta: small facts that readers need beside the tables; JSON, no clock times, no prompts.
        """
        draft = self._draft(dataset, partition, tables, meta)
        while True:
            ref = self._claim(draft, self._newest(dataset, partition))
            if ref is not None:
                return ref

    def publish_onto(
        self,
        parent: str | None,
        dataset: str,
        partition: str,
        tables: Mapping[str, TableSource],
        meta: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Publish as :meth:`publish` does, but only while ``parent`` is still the newest version.

        For content that was made from the stored one: when somebody else published in between, nothing is published and
        None comes back; read again, merge again, try again.

        Args:
            parent: what :meth:`latest` said before reading; None: nothing was there.
            dataset: what the rows are.
            partition: which of them.
            tables: name → Arrow table, reader of batches, or several readers.
            meta: small facts beside the tables.
        """
        draft = self._draft(dataset, partition, tables, meta)
        version = (Ref.parse(parent).version or 0) if parent else 0
        ref = self._claim(draft, version) if self._newest(dataset, partition) == version else None
        if ref is None:
            self._discard(draft)
        return ref

    def latest(self, dataset: str, partition: str) -> str | None:
        """Return the reference of a partition's newest version, or None when nothing was published."""
        newest = self._newest(check_name("dataset", dataset), check_name("partition", partition))
        return str(Ref(dataset, partition, newest)) if newest else None

    def partitions(self, dataset: str, prefix: str = "") -> list[str]:
        """Return the partitions of a data set that have a version, sorted; of those whose name begins with ``prefix``.

        Each is looked at, which takes time on object storage: name the prefix where it is known.
        """
        names = self._files.names(check_name("dataset", dataset))
        return [name for name in names if name.startswith(prefix) and self._newest(dataset, name)]

    def read(self, ref: str, table: str, columns: Sequence[str] | None = None, where: Where | None = None) -> pa.Table:
        """Return one table of a partition, or some of its columns and rows.

        Args:
            ref: ``dataset/partition`` (newest) or ``dataset/partition@000001``.
            table: its name.
            columns: to read; None reads all.
            where: column → the values that a row may have in it; see ``selection.py`` for what that saves.

        Raises:
            ContractError: there is no such partition, version or table.
        """
        parts = []
        for file in self._entry(ref, table).files:
            with self._files.open(file.path, "rb") as handle:
                if where:
                    parts.append(read_rows(pq.ParquetFile(handle), columns, where))
                else:
                    parts.append(pq.read_table(handle, columns=None if columns is None else list(columns)))
        return pa.concat_tables(parts)

    def files(self, ref: str, table: str) -> list[str]:
        """Return the addresses of a table's Parquet files, for DuckDB or Arrow. Raises as :meth:`read`."""
        return [self._files.address(file.path) for file in self._entry(ref, table).files]

    def open_files(self, ref: str, table: str) -> list[Any]:
        """Return a table's files as ``pyarrow.parquet.ParquetFile``, for what is too large to be read whole."""
        return [pq.ParquetFile(self._files.open(file.path, "rb")) for file in self._entry(ref, table).files]

    def rows(self, ref: str, table: str) -> int:
        """Return how many rows a table has, from the manifest alone. Raises as :meth:`read`."""
        return self._entry(ref, table).rows

    def meta(self, ref: str) -> dict[str, Any]:
        """Return the facts that were published beside the tables. Raises as :meth:`read`."""
        return dict(self._manifest(Ref.parse(ref)).meta)

    def query(
        self,
        statement: str,
        tables: Mapping[str, pa.Table | Sequence[str]],
        parameters: Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """Run one SQL statement and return its rows.

        Args:
            statement: usually from ``resources.sql``, with ``$name`` parameters.
            tables: view name → an Arrow table, or references ``dataset/partition[@version]:table`` (read together).
            parameters: exactly the parameters that the statement names.
        """
        inputs = {
            name: source if isinstance(source, pa.Table) else self._addresses(source) for name, source in tables.items()
        }
        with self.connect() as connection:
            return queries.run(connection, statement, inputs, parameters)

    def connect(self, *, memory_limit: str = "2GB", spill_folder: str | None = None) -> Any:
        """Return an in-memory DuckDB connection that can read this lake's files."""
        filesystem = None if self._files.is_local else self._files.fs
        return queries.connect(filesystem, memory_limit=memory_limit, spill_folder=spill_folder)

    def drop(self, dataset: str, partition: str) -> int:
        """Remove a partition with all its versions; return how many files went.

        Manifests go first, oldest first: a reader finds the newest version whole or the partition absent.
        """
        root = f"{check_name('dataset', dataset)}/{check_name('partition', partition)}/"
        every = [path for path in self._files.walk() if path.startswith(root)]
        for path in sorted(every, key=lambda path: (not _is_manifest(path), path)):
            self._files.remove(path)
        return len(every)

    def collect(self, older_than: datetime) -> list[str]:
        """Remove data files that no manifest names and that were written before ``older_than``; return their paths.

        Choose ``older_than`` so that no publisher that is still at work began before it.
        """
        every = self._files.walk()
        named: set[str] = set()
        for path in (path for path in every if _is_manifest(path)):
            manifest = Manifest.parse(self._files.read(path), path)
            named.update(file.path for entry in manifest.tables.values() for file in entry.files)
        garbage = [
            path
            for path in every
            if path not in named and not _is_manifest(path) and self._files.modified(path) < older_than
        ]
        for path in garbage:
            self._files.remove(path)
        return garbage

    def _addresses(self, refs: Sequence[str]) -> list[str]:
        if isinstance(refs, str) or not refs:
            raise ContractError("a query's input is an Arrow table or a non-empty list of dataset/partition:table")
        return [address for ref, _, table in (r.partition(":") for r in refs) for address in self.files(ref, table)]

    def _draft(
        self, dataset: str, partition: str, tables: Mapping[str, TableSource], meta: Mapping[str, Any] | None
    ) -> Manifest:
        """Write the data files; the manifest that will name them has no version yet."""
        check_name("dataset", dataset)
        check_name("partition", partition)
        facts = dict(meta or {})
        entries = {name: self._write(dataset, partition, name, source) for name, source in sorted(tables.items())}
        return Manifest(
            dataset=dataset,
            partition=partition,
            version=0,
            content_digest=content_digest(entries, facts),
            tables=entries,
            meta=facts,
        )

    def _claim(self, draft: Manifest, newest: int) -> str | None:
        """Make a draft the version after ``newest``; None when another publisher took that number first."""
        current = Ref(draft.dataset, draft.partition, newest)
        if newest and self._manifest(current).content_digest == draft.content_digest:
            self._discard(draft)
            return str(current)
        following = current._replace(version=newest + 1)
        manifest = draft.model_copy(update={"version": newest + 1})
        return str(following) if self._files.create(_manifest_path(following), manifest.to_json()) else None

    def _discard(self, draft: Manifest) -> None:
        for file in (file for entry in draft.tables.values() for file in entry.files):
            self._files.remove(file.path)

    def _write(self, dataset: str, partition: str, table: str, source: TableSource) -> TableEntry:
        folder = f"{dataset}/{partition}/data/{check_name('table', table)}"
        sources = [source] if isinstance(source, pa.Table | pa.RecordBatchReader) else source
        with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
            stored = list(threads.map(lambda part: self._write_file(folder, part), sources))
        return TableEntry(
            files=stored, rows=sum(file.rows for file in stored), bytes=sum(file.bytes for file in stored)
        )

    def _write_file(self, folder: str, source: pa.Table | pa.RecordBatchReader) -> DataFile:
        path = f"{folder}-{uuid.uuid4().hex}.parquet"
        rows = 0
        schema = source.schema.remove_metadata()
        groups = _row_groups(source)
        first = next(groups, schema.empty_table())
        with self._files.open(path, "wb") as inner:
            file = _HashingFile(inner)
            with pq.ParquetWriter(
                pa.PythonFile(file, mode="w"), schema, compression="zstd", use_dictionary=_repeated(first)
            ) as writer:
                for group in chain([first] if first.num_rows else [], groups):
                    writer.write_table(group.replace_schema_metadata(None))
                    rows += group.num_rows
        return DataFile(path=path, rows=rows, bytes=file.bytes, sha256=file.sha256.hexdigest())

    def _newest(self, dataset: str, partition: str) -> int:
        names = self._files.names(f"{dataset}/{partition}/manifests")
        return max((int(name[:6]) for name in names if _is_manifest_name(name)), default=0)

    def _manifest(self, ref: Ref) -> Manifest:
        version = ref.version or self._newest(ref.dataset, ref.partition)
        if not version:
            raise ContractError(f"{ref} is not in the lake {self.uri}")
        path = _manifest_path(ref._replace(version=version))
        try:
            return Manifest.parse(self._files.read(path), path)
        except FileNotFoundError:
            raise ContractError(f"{ref} is not in the lake {self.uri}") from None

    def _entry(self, ref: str, table: str) -> TableEntry:
        manifest = self._manifest(Ref.parse(ref))
        if table not in manifest.tables:
            raise ContractError(f"{ref} has no table {table!r}; it has {', '.join(sorted(manifest.tables)) or 'none'}")
        return manifest.tables[table]


def _manifest_path(ref: Ref) -> str:
    return f"{ref.dataset}/{ref.partition}/manifests/{ref.version:06d}.json"


def _is_manifest_name(name: str) -> bool:
    return len(name) == len("000001.json") and name[:6].isdecimal() and name.endswith(".json")


def _is_manifest(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder.endswith("/manifests") and _is_manifest_name(name)


def _repeated(group: pa.Table) -> list[str]:
    """Return the columns whose values repeat themselves, by those of the first row group."""
    flat = [name for name in group.column_names if not pa.types.is_nested(group.schema.field(name).type)]
    return [name for name in flat if pc.count_distinct(group[name]).as_py() <= _REPEATED_SHARE * group.num_rows]


def _row_groups(source: pa.Table | pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield groups of a size that depends on the rows alone, not on how they come in: equal rows give equal bytes."""
    batches = source.to_batches() if isinstance(source, pa.Table) else source
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        while rows >= _ROW_GROUP_ROWS or size > _ROW_GROUP_BYTES:
            held = pa.Table.from_batches(waiting, schema=source.schema)
            cut = _rows_of_group(held)
            if cut is None:
                break
            yield held.slice(0, cut).combine_chunks()
            waiting = held.slice(cut).to_batches()
            rows, size = rows - cut, sum(left.nbytes for left in waiting)
    if rows:
        yield pa.Table.from_batches(waiting, schema=source.schema).combine_chunks()


def _rows_of_group(held: pa.Table) -> int | None:
    """Return how many of the rows make a group, by number or by length; None when it takes more of them."""
    if held.num_rows > 1 and held.nbytes > _ROW_GROUP_BYTES:
        sizes = np.zeros(held.num_rows, dtype=np.int64)
        for column in held.columns:
            if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
        before = int(np.searchsorted(np.cumsum(sizes), _ROW_GROUP_BYTES, side="right"))
        if before < min(held.num_rows, _ROW_GROUP_ROWS):
            return max(1, before)
    return _ROW_GROUP_ROWS if held.num_rows >= _ROW_GROUP_ROWS else None
