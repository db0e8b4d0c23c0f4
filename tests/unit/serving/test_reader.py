from datetime import timedelta

import pytest

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import IdentityField, check_salt
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.reader import Hit, Miss, MissReason, ReaderClient
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import AdapterValue


@pytest.fixture
def reader(redis_client, now):
    return ReaderClient(redis_client, clock=lambda: now)


@pytest.fixture
def publish(redis_client, mark_of, now):
    def put(value, **changes):
        ValueStore(redis_client).put_many([value], now)
        mark = mark_of(value, **changes)
        MarkStore(redis_client).put_many([mark], now)
        return mark

    return put


def test_hit_gives_value_and_mark(reader, publish, make_response, make_embedding, identity, embedder):
    response, embedding = make_response(), make_embedding()
    mark = publish(response)
    publish(embedding)
    assert reader.response(None, identity, response.prompt_sha256) == Hit(response, mark)
    assert reader.embedding(None, embedder, embedding.prompt_sha256).value == embedding


def test_a_value_without_mark_is_a_miss(reader, redis_client, make_response, identity, now):
    response = make_response()
    ValueStore(redis_client).put_many([response], now)
    found = reader.response(None, identity, response.prompt_sha256)
    assert found == Miss(MissReason.NOT_READY, "there is no mark")


def test_an_ended_mark_is_a_miss(redis_client, publish, make_response, identity, now):
    response = make_response()
    publish(response, expires_at=now + timedelta(minutes=1))
    late = ReaderClient(redis_client, clock=lambda: now + timedelta(minutes=1))
    assert late.response(None, identity, response.prompt_sha256).reason == MissReason.NOT_READY


@pytest.mark.parametrize("other", ["acme%2Feu", "acme", "", None, "acme/eu "])
def test_never_another_tenants_answer(reader, publish, make_response, identity, other):
    mine = make_response("What is my account balance?", "12 EUR", tenant="acme/eu")
    publish(mine)
    assert reader.response("acme/eu", identity, mine.prompt_sha256).value.text == "12 EUR"
    assert reader.response(other, identity, mine.prompt_sha256) == Miss(MissReason.NO_VALUE)


@pytest.mark.parametrize("field", ["weights_revision", "quantization", "dtype", "chat_template_digest"])
def test_never_another_identitys_answer(reader, publish, make_response, identity, field):
    response = make_response()
    publish(response)
    other = identity.model_copy(update={field: IdentityField(declared="other")})
    assert reader.response(None, other, response.prompt_sha256) == Miss(MissReason.NO_VALUE)


@pytest.mark.parametrize("change", [{"revision": "2"}, {"embedder": "f"}, {"lexicon_version": "2026-11"}])
def test_another_embedder_of_the_same_dimension_is_a_miss(reader, publish, make_embedding, embedder, change):
    embedding = make_embedding()
    publish(embedding)
    found = reader.embedding(None, embedder.model_copy(update=change), embedding.prompt_sha256)
    assert found == Miss(MissReason.NO_VALUE)


def test_what_lies_under_a_foreign_key_is_not_handed_out(
    reader, redis_client, publish, make_response, identity, make_embedding
):
    mine, theirs = make_response("a", tenant="acme"), make_response("a", "private", tenant="rival")
    publish(mine)
    redis_client.set(mine.key, theirs.encode(), ex=60)
    assert reader.response("acme", identity, mine.prompt_sha256).reason == MissReason.OTHER_OWNER
    redis_client.set(mine.key, make_embedding().encode(), ex=60)
    assert reader.response("acme", identity, mine.prompt_sha256).reason == MissReason.BAD_VALUE
    redis_client.set(mine.key, b"nonsense", ex=60)
    assert reader.response("acme", identity, mine.prompt_sha256).reason == MissReason.BAD_VALUE
    redis_client.set(mine.key, mine.encode().replace(b'"schema_version":1', b'"schema_version":9'), ex=60)
    assert reader.response("acme", identity, mine.prompt_sha256).reason == MissReason.BAD_VALUE


def test_a_mark_of_another_item_vouches_for_nothing(reader, redis_client, publish, make_response, mark_of, identity):
    response, other = make_response("a"), make_response("b")
    mark = publish(response)
    redis_client.set(MarkAddress.of(mark).key, mark_of(other).model_dump_json(), ex=60)
    assert reader.response(None, identity, response.prompt_sha256).reason == MissReason.NOT_READY
    redis_client.set(MarkAddress.of(mark).key, mark_of(response, value_key=other.key).model_dump_json(), ex=60)
    assert reader.response(None, identity, response.prompt_sha256).reason == MissReason.NOT_READY


def test_an_adapter_is_ready_on_a_replica_in_its_epoch(reader, redis_client, publish, identity, now):
    lora = identity.for_adapter("sql", IdentityField(declared="1"))
    entry = AdapterValue(
        item_id="i", identity_digest=lora.digest(), created_at=now, model="m", adapter="sql", version="1", path="/sql"
    )
    publish(entry, replica="r0", epoch="e1")
    epochs = EpochStore(redis_client)
    assert "epoch is unknown" in reader.adapter(lora, "r0").detail
    epochs.publish(EpochRecord(replica="r0", epoch="e1", observed_at=now))
    assert reader.adapter(lora, "r0").value.path == "/sql"
    assert reader.adapter(lora, "r1") == Miss(MissReason.NOT_READY, "there is no mark")
    epochs.publish(EpochRecord(replica="r0", epoch="e2", observed_at=now))
    assert "epoch changed" in reader.adapter(lora, "r0").detail
    retrained = identity.for_adapter("sql", IdentityField(declared="2"))
    assert reader.adapter(retrained, "r0") == Miss(MissReason.NO_VALUE)


def test_items_are_ready_by_mark_and_epoch(reader, redis_client, make_mark, identity, now):
    mark = make_mark()
    MarkStore(redis_client).put_many([mark], now)
    asked = (None, identity.digest(), mark.item_id, "r0")
    assert not reader.is_item_ready(*asked).is_ready
    EpochStore(redis_client).publish(EpochRecord(replica="r0", epoch="e1", observed_at=now))
    assert reader.is_item_ready(*asked).is_ready
    assert not reader.is_item_ready(None, identity.digest(), mark.item_id, None).is_ready


def test_redis_away_is_a_miss(identity):
    reader = ReaderClient(connect("redis://127.0.0.1:1/0", attempts=1, timeout_s=0.5))
    assert reader.response(None, identity, "0" * 64).reason == MissReason.STORE_AWAY
    assert not reader.is_item_ready(None, identity.digest(), "i", "r0").is_ready


def test_salts_are_safe_and_never_meet(reader, identity):
    tenants = ["acme/eu", "acme", "a@b", "x" * 200, "_default", "{a:b}"]
    other = identity.model_copy(update={"weights_revision": IdentityField(declared="r2")})
    salts = [reader.salt_for(tenant, who) for tenant in tenants for who in (identity, other)]
    for salt in salts:
        check_salt(salt)
    assert len(set(salts)) == len(salts)
    with pytest.raises(ConfigurationError, match="empty tenant"):
        reader.salt_for("", identity)
