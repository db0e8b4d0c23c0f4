"""Writing and reading values in bulk: at protocol speed, within Redis' memory, resumed after a loss (spec 1.2).

A value counts for nothing until its mark is published, so a load that stops half-way leaves nothing half-ready. Which
values a reader may see lives in ``reader.py``, how they are encoded and packed in ``blocks.py`` and ``wire.py``.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import redis

from warmup_tasks.errors import ContractError, GiveUpError, RetryLaterError
from warmup_tasks.identity import index_key
from warmup_tasks.serving.blocks import Block, BlockSource, ValueBlocks, estimated_bytes
from warmup_tasks.serving.connection import node_of, nodes, refresh_nodes, store_errors
from warmup_tasks.serving.namespaces import ENTER, LINE, SLACK_S, Namespace, NamespaceIndex
from warmup_tasks.serving.records import chunks
from warmup_tasks.serving.values import StoredValue, decode_value
from warmup_tasks.serving.wire import Pipe, command, piped, set_commands

__all__ = ["ValueStore", "WriteReport", "estimated_bytes"]

log = logging.getLogger(__name__)

_WINDOW = 8000  # answers due before sending waits: keeps the server busy while the next values are read and packed
_PATIENCE_WITH_EVICTION = 2  # evictions under way when a load begins may have hit others' keys, once
_PAUSE_S = 0.1
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a bulk write did: values written, their size in Redis as estimated, and how often it had to resume."""

    written: int
    estimated_bytes: int
    resumed: int


class ValueStore:
    """The values of all tenants and identities."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def put_many(
        self,
        values: Sequence[StoredValue],
        now: datetime,
        *,
        deadline_s: float = 60.0,
        on_progress: Callable[[int], None] | None = None,
    ) -> WriteReport:
        """Write typed values, each once, of any kinds, tenants and identities; see :meth:`load`."""
        return self.load(ValueBlocks(values), now, deadline_s=deadline_s, on_progress=on_progress)

    def load(
        self,
        source: BlockSource,
        now: datetime,
        *,
        deadline_s: float = 60.0,
        on_progress: Callable[[int], None] | None = None,
    ) -> WriteReport:
        """Write all values of a source, each once, and prove that all of them are there.

        Memory is checked before the first write. A lost connection is waited for; the load goes on behind what was
        acknowledged. Where Redis came back as another process, or evicted keys, it looks for what is missing.

        Args:
            source: typed values or the columns of a file (``blocks.py``).
            now: by the wall clock; lives begin here.
            deadline_s: for the whole load, waiting included.
            on_progress: called with the number of values sent so far.

        Raises:
            GiveUpError: they do not fit into Redis' memory, or Redis evicts what was just written.
            RetryLaterError: Redis did not come back within the deadline; calling again resumes.
        """
        give_up_at = time.monotonic() + deadline_s
        if not len(source):
            return WriteReport(0, 0, 0)
        _patiently(lambda: self._check_memory(source), give_up_at)
        load = _Load(self._client, self, source, now, on_progress)
        state = _patiently(lambda: _servers(self._client), give_up_at)
        resumed = dropped = 0
        while True:
            lost = load.go_on()
            if lost is not None and time.monotonic() > give_up_at:
                raise lost
            before, state = state, _patiently(lambda: _servers(self._client), give_up_at)
            if state != before:
                missing = _patiently(lambda: self._missing(source), give_up_at)
                if not missing:
                    break
                dropped += lost is None
                if dropped == _PATIENCE_WITH_EVICTION:
                    raise GiveUpError(
                        f"Redis drops values that were just written ({missing} of {len(source)} are gone): it evicts "
                        "under memory pressure; raise maxmemory or plan fewer items"
                    )
                load.begin_again()
            elif lost is None:
                break
            resumed += 1
        return WriteReport(len(source), sum(source.bytes_by_prefix.values()), resumed)

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Return those of the keys that are there: what a repeated task need not compute again."""
        found: set[str] = set()
        with store_errors("looking for values"):
            for chunk in chunks(keys):
                with self._client.pipeline(transaction=False) as pipe:
                    for key in chunk:
                        pipe.exists(key)
                    found |= {key for key, there in zip(chunk, pipe.execute(), strict=True) if there}
        return found

    def get(self, key: str) -> StoredValue | None:
        """Return a value as it is stored, marked or not; None where there is none.

        Raises:
            ContractError: what is stored there is no value of this schema version.
        """
        with store_errors("reading a value"):
            raw = self._client.get(key)
        return None if raw is None else _decoded(raw)

    def get_many(self, keys: Sequence[str]) -> dict[str, StoredValue]:
        """Return key → value where one is stored, marked or not; what is no value counts as none."""
        found: dict[str, StoredValue] = {}
        with store_errors("reading values"):
            for chunk in chunks(keys):
                with self._client.pipeline(transaction=False) as pipe:  # the keys may lie on several nodes
                    for key in chunk:
                        pipe.get(key)
                    for key, raw in zip(chunk, pipe.execute(), strict=True):
                        with suppress(ContractError):
                            found |= {} if raw is None else {key: _decoded(raw)}
        return found

    def missing(self, block: Block) -> Block:
        """Return the block without the values that are there already."""
        keys = block.keys
        with store_errors("looking for values"):
            count = int(self._client.exists(*keys))
        if count == len(keys):
            return block.only(set())
        return block.only(set(keys) - self.existing(keys)) if count else block

    def _missing(self, source: BlockSource) -> int:
        return sum(len(self.missing(block)) for block in source)

    def _check_memory(self, source: BlockSource) -> None:
        with store_errors("asking for Redis' memory"):
            refresh_nodes(self._client)
            prefixes = {prefix: node_of(self._client, prefix).name for prefix in source.bytes_by_prefix}
            for node in nodes(self._client):
                memory = node.client.info("memory")
                limit, used = int(memory.get("maxmemory", 0)), int(memory["used_memory"])
                mine = {prefix for prefix, name in prefixes.items() if name == node.name}
                needed = sum(source.bytes_by_prefix[prefix] for prefix in mine)
                if limit and used + needed > limit:
                    self._check_closely(source, mine, limit, used)

    def _check_closely(self, source: BlockSource, prefixes: set[str], limit: int, used: int) -> None:
        """Count only what is not there yet: writing a value again takes no more memory."""
        missing = [self.missing(block) for block in source if block.where.prefix in prefixes]
        needed, count = sum(block.estimated_bytes for block in missing), sum(map(len, missing))
        if used + needed > limit:
            raise GiveUpError(
                f"{count} values need {needed / 1e6:.1f} MB, but Redis has {max(0, limit - used) / 1e6:.1f} MB "
                f"left of its maxmemory of {limit / 1e6:.1f} MB; raise maxmemory or plan fewer items. "
                "Nothing was written"
            )


class _Load:
    """One source on its way; knows up to which block everything was acknowledged."""

    def __init__(
        self,
        client: redis.Redis,
        store: ValueStore,
        source: BlockSource,
        now: datetime,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._client, self._store, self._source, self._now = client, store, source, now
        self._on_progress = on_progress or (lambda _: None)
        self._index = NamespaceIndex(client)
        self._listed: set[Namespace] = set()
        self._acknowledged = 0
        self._skips_present = False

    def begin_again(self) -> None:
        """Start over with the next :meth:`go_on`, writing only what is missing."""
        self._acknowledged, self._skips_present = 0, True
        self._listed.clear()

    def go_on(self) -> RetryLaterError | None:
        """Write what was not acknowledged yet; return the error when Redis goes away, None when all is written."""
        try:
            with store_errors("writing values"), ExitStack() as stack:
                self._write(stack)
        except RetryLaterError as error:
            log.warning("Redis went away after %d blocks of values; waiting for it", self._acknowledged)
            return error
        return None

    def _write(self, stack: ExitStack) -> None:
        pipes: dict[str, Pipe] = {}
        under_way: deque[tuple[Pipe, int]] = deque()
        sent = 0
        for number, block in enumerate(self._source):
            sent += len(block)
            if number < self._acknowledged:
                continue
            if self._skips_present:
                block = self._store.missing(block)
            node = node_of(self._client, block.where.prefix)
            if node.name not in pipes:
                pipes[node.name] = stack.enter_context(piped(node.client, _WINDOW))
            self._list(block)
            self._send(block, pipes[node.name])
            under_way.append((pipes[node.name], pipes[node.name].sent))
            self._acknowledge(under_way)
            self._on_progress(sent)
        for pipe in pipes.values():
            pipe.settle()
        self._acknowledge(under_way)

    def _acknowledge(self, under_way: "deque[tuple[Pipe, int]]") -> None:
        while under_way and under_way[0][0].answered >= under_way[0][1]:
            under_way.popleft()
            self._acknowledged += 1

    def _list(self, block: Block) -> None:
        if block.where not in self._listed:
            self._index.register({block.where: self._end(block)}, self._now)
            self._listed.add(block.where)

    def _send(self, block: Block, pipe: Pipe) -> None:
        if not len(block):
            return
        end = self._end(block)
        prefix = block.where.prefix
        values = set_commands(prefix, block.suffixes, block.values, block.ttl_s)
        if end is None:
            pipe.send(values, answers=len(block))
            return
        entry = LINE.encode().join(block.suffixes.to_pylist())
        numbers = (f"{moment:.3f}".encode() for moment in (self._now.timestamp() - SLACK_S, end.timestamp()))
        enter = command(b"EVAL", ENTER.encode(), b"1", index_key(prefix).encode(), *numbers, entry)
        pipe.send(enter, values, answers=1 + len(block))

    def _end(self, block: Block) -> datetime | None:
        return None if block.ttl_s is None else self._now + timedelta(seconds=block.ttl_s)


def _decoded(raw: object) -> StoredValue:
    if not isinstance(raw, bytes):
        raise GiveUpError("values need a client that answers in bytes: use serving.connect")
    return decode_value(raw)


def _servers(client: redis.Redis) -> dict[str, tuple[str, int]]:
    """Return node → process and number of evictions: while these stand, what was acknowledged is there."""
    with store_errors("asking for Redis' state"):
        refresh_nodes(client)
        return {
            node.name: (str(node.client.info("server")["run_id"]), int(node.client.info("stats")["evicted_keys"]))
            for node in nodes(client)
        }


def _patiently(action: Callable[[], ResultT], give_up_at: float) -> ResultT:
    while True:
        try:
            return action()
        except RetryLaterError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(_PAUSE_S)
