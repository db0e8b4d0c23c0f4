"""The stream of live events against a real Redis: once an epoch, none lost, none given twice, bounded, no prompts."""

from datetime import UTC, datetime, timedelta

import pytest

from warmup_tasks.identity import events_key
from warmup_tasks.serving.events import MAX_EVENTS, EventKind, EventStream, LiveEvent, Reaction
from warmup_tasks.signals import Signal

NOW = datetime(2026, 11, 30, 8, tzinfo=UTC)


def joined(replica: str = "r0", epoch: str = "e1", kind: EventKind = EventKind.JOINED) -> LiveEvent:
    return LiveEvent(kind=kind, replica=replica, model="m", epoch=epoch, time=NOW)


def surge(replica: str = "r0") -> LiveEvent:
    return LiveEvent(
        kind=EventKind.SURGE, replica=replica, model="m", epoch="e1", time=NOW,
        signals=(Signal.TTFT,), ttft_p95_ms=800.0, threshold_ms=500.0,
    )  # fmt: skip


@pytest.fixture
def stream(redis_client):
    return EventStream(redis_client)


def given(stream, **options) -> list[LiveEvent | None]:
    return [stored.event for stored in stream.read("g", "reader", **options)]


def test_an_epoch_is_announced_once_however_many_agents_see_it(stream, redis_client):
    other = EventStream(redis_client)
    assert stream.announce(joined()) is not None
    assert other.announce(joined()) is None
    assert stream.announce(joined(kind=EventKind.RESTARTED)) is None
    assert other.announce(joined(epoch="e2", kind=EventKind.RESTARTED)) is not None
    assert [event.kind for event in given(stream)] == [EventKind.JOINED, EventKind.RESTARTED]


def test_a_group_is_given_each_event_once_and_again_only_what_it_did_not_acknowledge(stream):
    assert given(stream) == []
    stream.announce(joined("r0"))
    stream.add(surge("r1"))
    first = stream.read("g", "reader")
    assert [stored.event for stored in first] == [joined("r0"), surge("r1")]
    stream.add(surge("r2"))
    assert given(stream) == [surge("r2")]
    stream.acknowledge("g", [first[0].id])
    assert given(stream, is_again=True) == [surge("r1"), surge("r2")]
    stream.acknowledge("g", [stored.id for stored in stream.read("g", "reader", is_again=True)])
    assert given(stream, is_again=True) == given(stream) == []


def test_a_new_group_begins_with_the_oldest_event_and_a_lost_stream_is_begun_anew(stream, redis_client):
    stream.add(surge("r0"))
    assert given(stream) == [surge("r0")]
    redis_client.delete(events_key())
    stream.add(surge("r1"))
    assert given(stream) == [surge("r1")]


def test_the_stream_is_bounded_and_ends_by_itself(stream, redis_client):
    with redis_client.pipeline(transaction=False) as pipe:
        for _ in range(3 * MAX_EVENTS):
            pipe.xadd(events_key(), {"event": "{}"})
        pipe.execute()
    stream.add(surge())
    assert redis_client.xlen(events_key()) <= MAX_EVENTS + 200
    assert redis_client.pttl(events_key()) > 0


def test_what_is_of_another_schema_is_handed_on_as_unknown_so_that_it_can_be_passed(stream, redis_client):
    stream.add(surge())
    redis_client.xadd(events_key(), {"event": '{"schema_version": 99}'})
    assert given(stream) == [surge(), None]


def test_reading_waits_for_the_first_event(stream):
    assert given(stream, block_s=0.01) == []
    stream.add(surge())
    assert given(stream, block_s=1.0) == [surge()]


def test_reactions_and_outcomes_are_kept(stream):
    assert stream.reaction("r0") is None
    done = Reaction(replica="r0", run="a", epoch="e1", kind=EventKind.JOINED, time=NOW, event_ids=["1-0"])
    stream.react(done)
    stream.react(done.model_copy(update={"time": NOW + timedelta(seconds=5)}))
    assert stream.reaction("r0") == done.model_copy(update={"time": NOW + timedelta(seconds=5)})
    stream.count(["fired", "fired", "cooling down"])
    assert stream.outcomes() == {"fired": 2, "cooling down": 1}
