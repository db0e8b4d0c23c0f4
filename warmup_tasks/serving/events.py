"""Live events in Redis: what the agent saw that may call for a warm-up on the spot, as a bounded stream (spec 1.1).

A stream and not a channel: who was away reads on from where it stood. Events carry figures and names, never a prompt.
What follows from an event is decided elsewhere; how a reader acknowledges what it has handed on is said here.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, cast

import redis

from warmup_tasks.identity import announced_key, events_key, outcomes_key, reaction_key
from warmup_tasks.items import Record
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.records import decode
from warmup_tasks.signals import Signal

EVENT_SCHEMA = 1
MAX_EVENTS = 1000
"""The stream keeps about so many; an event that old means nothing any more."""
KEPT_FOR = timedelta(days=1)
_REMEMBERED_FOR = timedelta(days=7)
_FIELD = "event"

# Both keys carry one hash tag; an epoch is announced once, however many agents see it begin.
_ANNOUNCE = """
local is_known = redis.call('HGET', KEYS[2], ARGV[1]) == ARGV[2]
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
if is_known then return false end
local id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'event', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return id
"""


class EventKind(StrEnum):
    """What happened to a replica."""

    JOINED = "joined"
    RESTARTED = "restarted"
    EMPTIED = "emptied"
    SURGE = "surge"


class LiveEvent(Record):
    """One event; figures that could not be measured are None.

    Of a new life of the cache (``joined``, ``restarted``, ``emptied``) ``epoch`` is the new one. A ``surge`` names the
    signals that crossed their thresholds, with the figures behind them.
    """

    schema_version: int = EVENT_SCHEMA
    kind: EventKind
    replica: str
    model: str
    epoch: str
    time: datetime
    signals: tuple[Signal, ...] = ()
    ttft_p95_ms: float | None = None
    threshold_ms: float | None = None
    qps: float | None = None
    qps_before: float | None = None
    miss_ratio: float | None = None
    miss_ratio_before: float | None = None


class Reaction(Record):
    """The last warm-up that an event set off on a replica: for cooling down, and for knowing an event again."""

    schema_version: int = EVENT_SCHEMA
    replica: str
    run: str
    epoch: str
    kind: EventKind
    time: datetime
    event_ids: list[str]


class StoredEvent(NamedTuple):
    """An event with its id in the stream; ``event`` is None where it is of no schema that is known here."""

    id: str
    event: LiveEvent | None


class EventStream:
    """The stream of live events, and what became of them. Every call raises ``RetryLaterError`` without Redis."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._announce = client.register_script(_ANNOUNCE)

    def announce(self, event: LiveEvent) -> str | None:
        """Add the event of a new epoch, once; return its id, or None where that epoch was announced already.

        Call it again and again while the epoch lasts: what was announced is remembered for a week after the last call.
        """
        keys = [events_key(), announced_key()]
        lives = [_ms(_REMEMBERED_FOR), _ms(KEPT_FOR)]
        args: list[str | int] = [event.replica, event.epoch, event.model_dump_json(), MAX_EVENTS, *lives]
        with store_errors("announcing an epoch"):
            found = self._announce(keys=keys, args=args)
        return _text(found) if found else None

    def add(self, event: LiveEvent) -> str:
        """Add any other event and return its id."""
        with store_errors("adding an event"), self._client.pipeline(transaction=True) as pipe:
            pipe.xadd(events_key(), {_FIELD: event.model_dump_json()}, maxlen=MAX_EVENTS, approximate=True)
            pipe.pexpire(events_key(), KEPT_FOR)
            return _text(pipe.execute()[0])

    def read(self, group: str, reader: str, *, block_s: float = 0.0, is_again: bool = False) -> list[StoredEvent]:
        """Return events that the group has not been given yet, oldest first; none when nothing came in ``block_s``.

        Args:
            group: whose place in the stream counts; a group that is new begins with the oldest event.
            reader: who reads for the group.
            block_s: how long to wait for an event, in s, less than the client's time limit; 0 does not wait.
            is_again: return instead what this reader was given and never acknowledged.
        """
        wanted: dict[Any, Any] = {events_key(): "0" if is_again else ">"}
        block_ms = max(1, round(block_s * 1000)) if block_s else None
        with store_errors("reading events"):
            for _ in range(2):
                try:
                    found = self._client.xreadgroup(group, reader, wanted, count=MAX_EVENTS, block=block_ms)
                except redis.ResponseError as error:
                    if "NOGROUP" not in str(error):
                        raise
                    self._begin(group)
                else:
                    return [_stored(*entry) for _, entries in cast("list[Any]", found or []) for entry in entries]
        return []

    def acknowledge(self, group: str, ids: Sequence[str]) -> None:
        """Say that the group has handed these events on: they are not given to it again."""
        if ids:
            with store_errors("acknowledging events"):
                self._client.xack(events_key(), group, *ids)

    def react(self, reaction: Reaction) -> None:
        """Keep a replica's last reaction in place of the one before it."""
        with store_errors("keeping a reaction"):
            self._client.set(reaction_key(reaction.replica), reaction.model_dump_json(), ex=KEPT_FOR)

    def reaction(self, replica: str) -> Reaction | None:
        """Return the last reaction on a replica, or None."""
        with store_errors("reading a reaction"):
            return decode(self._client.get(reaction_key(replica)), Reaction, EVENT_SCHEMA)

    def count(self, outcomes: Iterable[str]) -> None:
        """Count what became of events, for the agent's metrics: ``fired``, or the reason why not."""
        with store_errors("counting events"), self._client.pipeline(transaction=False) as pipe:
            for outcome in outcomes:
                pipe.hincrby(outcomes_key(), outcome, 1)
            pipe.pexpire(outcomes_key(), _REMEMBERED_FOR)
            pipe.execute()

    def outcomes(self) -> dict[str, int]:
        """Return outcome → how often, since counting began."""
        with store_errors("reading outcomes"):
            found = cast("dict[bytes, bytes]", self._client.hgetall(outcomes_key()))
        return {_text(name): int(count) for name, count in found.items()}

    def _begin(self, group: str) -> None:
        try:
            self._client.xgroup_create(events_key(), group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._client.pexpire(events_key(), KEPT_FOR)


def _stored(entry_id: Any, fields: dict[bytes, bytes] | None) -> StoredEvent:
    raw = (fields or {}).get(_FIELD.encode())  # an entry that was trimmed meanwhile comes without fields
    return StoredEvent(_text(entry_id), decode(raw, LiveEvent, EVENT_SCHEMA))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)
