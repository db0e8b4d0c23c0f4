from datetime import timedelta

import pytest

from warmup_tasks.errors import RetryLaterError
from warmup_tasks.identity import NAMESPACES_KEY, EmbedderIdentity, IdentityField
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.invalidate import Invalidator
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.reader import Hit, ReaderClient
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import AdapterValue


@pytest.fixture
def lora(identity):
    return identity.for_adapter("sql", IdentityField(declared="1"))


@pytest.fixture
def filled(redis_client, make_response, make_embedding, make_mark, mark_of, identity, lora, embedder, now):
    """What a night leaves: answers of two tenants, an adapter with its prefix and answer, embeddings, readiness."""
    second = EmbedderIdentity(embedder="f", revision="1", dimensions=4)
    values = {
        "base": make_response("a"),
        "acme": make_response("a", tenant="acme"),
        "lora answer": make_response("a", identity=lora),
        "entry": AdapterValue(
            item_id="l", identity_digest=lora.digest(), created_at=now, model="m", adapter="sql", version="1", path="/s"
        ),
        "embedding": make_embedding("a"),
        "embedding f": make_embedding("a", by=second),
    }
    by = {"base": embedder, "acme": second, "lora answer": embedder}  # whose embeddings the answers rest on
    marks = {
        name: mark_of(value, embedder_digest=by[name].digest() if name in by else None)
        for name, value in values.items()
        if name != "entry"
    }
    marks["entry"] = mark_of(values["entry"], replica="r0", epoch="e1")
    marks["prefix"] = make_mark(item_id="b" * 32)
    marks["lora prefix"] = make_mark(item_id="c" * 32, adapter="sql", identity_digest=lora.digest())
    ValueStore(redis_client).put_many(list(values.values()), now)
    MarkStore(redis_client).put_many(list(marks.values()), now)
    ReadinessStore(redis_client).put(
        ReadinessRecord(
            model="m", replica="r0", run_id="run", as_of=now, epoch="e1", identity_digest=identity.digest(),
            planned=1, ready=1, share=1.0, is_ready=True, expires_at=now + timedelta(hours=1),
        ),
        now,
    )  # fmt: skip
    IdentityBook(redis_client).remember([identity, lora, embedder, second])
    return values, marks


MODEL = {"base", "acme", "lora answer", "entry", "prefix", "lora prefix"}


@pytest.mark.parametrize(
    ("reach", "gone", "readiness"),
    [
        ({"model": "m"}, MODEL, 1),
        ({"model": "m", "weights_revision": "r1"}, MODEL, 1),
        ({"model": "m", "weights_revision": "r2"}, set(), 0),
        ({"adapter": "sql"}, {"lora answer", "entry", "lora prefix"}, 1),
        ({"embedder": "e"}, {"embedding", "base", "lora answer"}, 0),
        ({"embedder": "f"}, {"embedding f", "acme"}, 0),
        ({"embedder": "e", "tenant": "acme"}, set(), 0),
        ({"lexicon_version": "none"}, {"embedding", "embedding f", "base", "acme", "lora answer"}, 0),
        ({"lexicon_version": "2"}, set(), 0),
        ({"embedder": "e", "embedder_revision": "2"}, set(), 0),
        ({"tenant": "acme"}, {"acme"}, 0),
    ],
)
def test_invalidation_walks_the_edges(redis_client, filled, reach, gone, readiness):
    values, marks = filled
    work, asked = Invalidator(redis_client), Reach(**reach)
    before = sorted(redis_client.scan_iter(count=1000))
    preview = work.preview(asked)
    assert sorted(redis_client.scan_iter(count=1000)) == before
    done = work.invalidate(asked)
    left = {name for name, value in values.items() if redis_client.exists(value.key)}
    assert left == set(values) - gone
    assert {name for name, mark in marks.items() if redis_client.exists(MarkAddress.of(mark).key)} == set(marks) - gone
    assert done.marks == len(gone)
    assert done.readiness == readiness
    assert (preview.is_dry_run, done.is_dry_run) == (True, False)
    assert (preview.marks, preview.values, preview.readiness) == (done.marks, done.values, done.readiness)
    assert (preview.why, preview.item_ids) == (done.why, done.item_ids)
    assert sum(n for by in done.why.values() for n in by.values()) == len(gone)
    assert set(done.item_ids) == {marks[name].item_id for name in gone}
    again = work.invalidate(asked)
    assert (again.marks, again.values, again.readiness) == (0, {}, 0)


def test_a_replica_loses_its_marks_and_readiness_but_no_value(redis_client, filled):
    values, _ = filled
    done = Invalidator(redis_client).invalidate(Reach(replica="r0"))
    assert (done.marks, done.values, done.readiness) == (3, {}, 1)
    assert all(redis_client.exists(value.key) for value in values.values())


def test_an_item_takes_its_value_with_it(redis_client, filled):
    values, _ = filled
    done = Invalidator(redis_client).invalidate(Reach(item_id=values["acme"].item_id))
    assert (done.marks, done.values) == (1, {"response": 1})
    assert redis_client.exists(values["base"].key)
    assert not redis_client.exists(values["acme"].key)


def test_everything_invalidated_leaves_nothing_but_what_identities_mean(redis_client, filled):
    work = Invalidator(redis_client)
    for reach in ({"model": "m"}, {"embedder": "e"}, {"embedder": "f"}):
        work.invalidate(Reach(**reach))
    assert not redis_client.exists(NAMESPACES_KEY)
    left = {key.decode().split(":")[1] for key in redis_client.scan_iter()}
    assert left == {"identity"}


def test_a_stop_half_way_hands_nothing_out(make_response, mark_of, identity, now, monkeypatch):
    with RedisServer() as server:
        client = connect(server.url, attempts=1)
        values = [make_response(str(n)) for n in range(50)]
        ValueStore(client).put_many(values, now)
        MarkStore(client).put_many([mark_of(value) for value in values], now)
        reader, work = ReaderClient(client), Invalidator(client)
        assert isinstance(reader.response(None, identity, values[0].prompt_sha256), Hit)
        monkeypatch.setattr(work, "_value_entries", lambda *_: (_ for _ in ()).throw(RetryLaterError("gone")))
        with pytest.raises(RetryLaterError):
            work.invalidate(Reach(model="m"))
        assert all(client.exists(value.key) for value in values)
        assert not any(isinstance(reader.response(None, identity, v.prompt_sha256), Hit) for v in values)
        monkeypatch.undo()
        assert work.invalidate(Reach(model="m")).values == {"response": 50}


def test_foreign_keys_are_left_alone(redis_client, filled):
    redis_client.set("app:session:1", "x", ex=60)
    redis_client.set("emb:" + "0" * 64, "x", ex=60)
    Invalidator(redis_client).invalidate(Reach(model="m"))
    assert redis_client.exists("app:session:1", "emb:" + "0" * 64) == 2
    assert redis_client.exists(NAMESPACES_KEY)
