import numpy as np
import pytest

from warmup_tasks.errors import ContractError, RejectItemError
from warmup_tasks.identity import EmbedderIdentity, IdentityField
from warmup_tasks.items import Reason
from warmup_tasks.serving.values import AdapterValue, QaValue, decode_value


def test_embedding_round_trip_is_compact(make_embedding):
    big = EmbedderIdentity(embedder="e", revision="1", dimensions=1024)
    vector = np.random.default_rng(3).normal(size=1024)
    value = make_embedding(vector=vector, by=big)
    stored = value.encode()
    assert len(stored) < 1024 * 4 + 600
    back = decode_value(stored)
    assert back == value
    np.testing.assert_array_equal(back.array(), vector.astype(np.float32))


def test_texts_round_trip_and_stay_out_of_reprs(make_response, identity, now):
    response = make_response(text="a secret\nwith lines ü \x00")
    qa = QaValue(
        item_id="i", tenant="acme", identity_digest=identity.digest(), created_at=now, model="m", adapter=None,
        intent_hash="h", question="a secret?", answer="a secret!",
    )  # fmt: skip
    for value in (response, qa):
        assert decode_value(value.encode()) == value
        assert "secret" not in repr(value)


def test_adapter_entry_has_the_key_of_its_identity(identity, now):
    with_adapter = identity.for_adapter("sql/v1:x", IdentityField(declared="7"))
    entry = AdapterValue(
        item_id="i", identity_digest=with_adapter.digest(), created_at=now, model="m", adapter="sql/v1:x",
        version="7", path="/adapters/sql",
    )  # fmt: skip
    assert entry.key.endswith("lora:m:sql%2Fv1%3Ax")
    assert decode_value(entry.encode()) == entry


@pytest.mark.parametrize("vector", [[0.1] * 3, [0.1] * 5, [[0.1] * 4], []])
def test_wrong_dimension_is_refused(make_embedding, vector):
    with pytest.raises(RejectItemError, match="4 dimensions") as refused:
        make_embedding(vector=vector)
    assert refused.value.reason == Reason.DIMENSION_MISMATCH


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_vector_holds_numbers(make_embedding, number):
    with pytest.raises(RejectItemError):
        make_embedding(vector=[0.1, 0.2, 0.3, number])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: b"",
        lambda raw: b"[]\n",
        lambda raw: b'{"kind":"joke"}\n',
        lambda raw: raw[:-1],
        lambda raw: raw.replace(b'"schema_version":1', b'"schema_version":2'),
        lambda raw: raw.replace(b'"dimensions":4', b'"dimensions":5'),
        lambda raw: raw.replace(b'"item_id"', b'"item_ix"'),
    ],
)
def test_spoiled_bytes_are_no_value(make_embedding, spoil):
    raw = make_embedding().encode()
    assert spoil(raw) != raw
    with pytest.raises(ContractError):
        decode_value(spoil(raw))
