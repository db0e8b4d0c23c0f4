"""Digests, keys, salts and serving identity: what may never change without a new key schema (spec 1.2 to 1.4)."""

import hashlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from warmup_tasks import identity as ids
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import EmbedderIdentity, EvidenceSource, IdentityField, ServingIdentity

TENANTS = [
    "acme/eu",
    "a@b",
    "t" * 200,
    "_default",
    "acme",
    "eu",
    "a:b",
    "a",
    "{x}",
    "!none",
    "été",
    " ",
    "a%2Fb",
    "a/b",
]
BASE = ServingIdentity(model="m", weights_revision=IdentityField(declared="r1"))
EMBEDDER = EmbedderIdentity(embedder="feature-hashing", revision="1", dimensions=384)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        ({"b": 1, "a": [True, None, "x"]}, b'{"a":[true,null,"x"],"b":1}'),
        ({"\u20ac": 1, "\r": 2, "1": 3, "\u00f6": 4}, '{"\\r":2,"1":3,"ö":4,"€":1}'.encode()),
        ([0.1, 1e21, 1e-7, 100.0, -0.0, 4.5], b"[0.1,1e+21,1e-7,100,0,4.5]"),
        ('\x00\x1f"\\/\u2028', '"\\u0000\\u001f\\"\\\\/\u2028"'.encode()),
        ({"\ufb33": 1, "\U0001f600": 2}, '{"\U0001f600":2,"\ufb33":1}'.encode()),  # by UTF-16 units, not code points
        ({}, b"{}"),
    ],
)  # fmt: skip
def test_canonical_json_follows_rfc_8785(value, canonical):
    assert ids.canonical_json(value) == canonical
    assert ids.digest(value) == hashlib.sha256(canonical).hexdigest()


def _nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", b"x", {1: 2}, {1, 2}, _nested(50_000)])
def test_what_has_no_canonical_form_is_refused_without_echo(value):
    with pytest.raises(ConfigurationError, match="no canonical JSON form"):
        ids.canonical_json(value)


def test_integers_that_the_rfc_cannot_write_stay_exact_and_apart():
    wide = [2**53, 2**53 + 1, -(2**53), 2**64 - 1, float(2**53), str(2**53), 2**53 - 1]
    assert len({ids.digest({"tools": [value]}) for value in wide}) == len(wide)


def test_wide_integers_are_exact():
    assert ids.canonical_json({"maximum": 2**63 - 1}) == b'{"maximum":{"!int":"9223372036854775807"}}'
    assert ids.digest([2**63]) != ids.digest([2**63 + 1])
    assert ids.canonical_json([2**53 - 1, True]) == b"[9007199254740991,true]"


def test_joined_parts_never_meet():
    assert ids.digest(["a:b", "c"]) != ids.digest(["a", "b:c"])
    first = ids.adapter_entry_key("d" * 64, "a:b", "c")
    second = ids.adapter_entry_key("d" * 64, "a", "b:c")
    assert first.endswith(":lora:a%3Ab:c")
    assert second.endswith(":lora:a:b%3Ac")
    assert ids.readiness_key("a:b", "c") != ids.readiness_key("a", "b:c")


def test_key_forms_of_the_specification():
    prompt, lora = "ab" * 32, BASE.for_adapter("sql", IdentityField(declared="7"))
    assert ids.embedding_key("acme", EMBEDDER, prompt).endswith(f":emb:{prompt}")
    assert ids.response_key("acme", BASE, prompt).endswith(f":resp:{prompt}")
    assert ids.adapter_key(lora).endswith(":lora:m:sql")
    assert ids.qa_key("acme", BASE, "cd" * 32).endswith(f":qa:{'cd' * 32}")
    assert ids.namespace("acme/eu", "f" * 64) == f"wt1:{{acme%2Feu:{'f' * 32}}}:"
    assert ids.namespace(None, "f" * 64) == f"wt1:{{!none:{'f' * 32}}}:"


def test_digest_and_identity_give_the_same_key():
    assert ids.response_key("t", BASE, "p") == ids.response_key("t", BASE.digest(), "p")
    assert ids.embedding_key("t", EMBEDDER, "p") == ids.embedding_key("t", EMBEDDER.digest(), "p")
    assert ids.qa_key("t", BASE, "p") == ids.qa_key("t", BASE.digest(), "p")


def test_tenants_share_no_namespace_and_no_salt():
    namespaces = {ids.namespace(tenant, BASE.digest()) for tenant in [*TENANTS, None]}
    assert len(namespaces) == len(TENANTS) + 1
    salts = {ids.derived_salt(tenant, BASE.digest()) for tenant in TENANTS}
    assert len(salts) == len(TENANTS)


@pytest.mark.parametrize("tenant", TENANTS)
def test_derived_salts_are_taken_by_every_engine(tenant):
    salt = ids.derived_salt(tenant, BASE.digest())
    ids.check_salt(salt)
    assert re.fullmatch("[0-9a-f]{64}", salt)
    assert len({salt, ids.derived_salt(tenant, BASE.digest(), "twin"), ids.derived_salt(tenant, "0" * 64)}) == 3


def test_an_empty_tenant_has_no_derived_salt():
    with pytest.raises(ConfigurationError, match="name the tenant"):
        ids.derived_salt("", BASE.digest())


@pytest.mark.parametrize("salt", ["", "x" * 129, "a@b", "a/b", "a\\b", "a\0b"])
def test_salts_that_the_engine_refuses_are_refused_before(salt):
    with pytest.raises(ConfigurationError, match="1 to 128 characters"):
        ids.check_salt(salt)


@settings(max_examples=60, deadline=None)
@given(TEXT, TEXT)
def test_components_are_injective_and_safe(first, second):
    safe = re.compile(r"[A-Za-z0-9\-._~%]*")
    assert safe.fullmatch(ids.component(first))
    assert (ids.component(first) == ids.component(second)) == (first == second)


def test_half_a_surrogate_pair_is_no_tenant():
    with pytest.raises(ConfigurationError, match="surrogate"):
        ids.namespace("\ud800", "f" * 64)


def test_a_cluster_keeps_a_namespace_on_one_slot():
    keys = [
        ids.response_key("a{b}", BASE, "p"),
        ids.qa_key("a{b}", BASE, "i"),
        ids.mark_key("a{b}", BASE.digest(), "id", "r{1}"),
    ]
    assert len({re.search(r"\{(.*?)\}", key).group(1) for key in keys}) == 1


def test_marks_of_the_store_and_of_replicas_differ():
    keys = {ids.mark_key("t", BASE.digest(), "id", replica) for replica in (None, "!store", "store", "r/1", "r%2F1")}
    assert len(keys) == 5


def test_only_adapter_entries_and_the_list_of_namespaces_may_live_without_a_ttl():
    lora = BASE.for_adapter("sql:x", IdentityField(declared="7"))
    assert ids.is_permanent(ids.adapter_key(lora))
    assert ids.is_permanent(ids.NAMESPACES_KEY)
    for key in (
        ids.response_key("lora:", BASE, "p"), ids.qa_key("t", BASE, "lora:x"),
        ids.mark_key("t", "f" * 64, "lora:", None), ids.epoch_key("r"),
        ids.readiness_key("lora:", "r"), ids.lease_key("x"),
    ):  # fmt: skip
        assert not ids.is_permanent(key)


def test_prompt_digest_covers_tools_template_arguments_and_kind():
    messages, tool = [{"role": "user", "content": "hello"}], {"type": "function", "function": {"name": "f"}}
    digests = [
        ids.prompt_digest(messages), ids.prompt_digest("hello"), ids.prompt_digest([104, 101]),
        ids.prompt_digest("[104,101]"),
        ids.prompt_digest(messages, [tool]), ids.prompt_digest(messages, None, {"thinking": True}),
        ids.prompt_digest([*messages, *messages]), ids.prompt_digest(messages, [tool, tool]), ids.prompt_digest(""),
    ]  # fmt: skip
    assert len(set(digests)) == len(digests)
    assert ids.prompt_digest(messages, [], {}) == ids.prompt_digest(messages)
    assert ids.prompt_digest("hello") == hashlib.sha256(b'{"prompt":"hello","template_args":{},"tools":[]}').hexdigest()


@pytest.mark.parametrize(
    ("field", "source"),
    [
        (IdentityField(), EvidenceSource.UNVERIFIED),
        (IdentityField(declared="a"), EvidenceSource.UNVERIFIED),
        (IdentityField(declared="a", reported="a"), EvidenceSource.REPORTED),
        (IdentityField(observed="a"), EvidenceSource.OBSERVED),
        (IdentityField(declared="a", reported="a", observed="a"), EvidenceSource.OBSERVED),
        (IdentityField(declared="a", reported="", observed=""), EvidenceSource.UNVERIFIED),
    ],
)
def test_a_declaration_alone_verifies_nothing(field, source):
    assert field.source is source
    assert field.contradiction is None


def test_contradictions_are_sentences_that_name_the_sources():
    other = ServingIdentity(
        model="m", weights_revision=IdentityField(declared="r1", observed="r2"), dtype=IdentityField(declared="bf16")
    )
    assert other.contradictions() == ["weights_revision: declared 'r1', observed 'r2'"]
    assert IdentityField(reported="a", observed="b").contradiction == "reported 'a', observed 'b'"


def test_evidence_does_not_move_the_namespace():
    proved = BASE.model_copy(update={"weights_revision": IdentityField(declared="r1", reported="r1", observed="r1")})
    assert proved.digest() == BASE.digest()
    assert proved.evidence()["weights_revision"] is EvidenceSource.OBSERVED
    assert BASE.evidence()["weights_revision"] is EvidenceSource.UNVERIFIED


@pytest.mark.parametrize(
    "field", ["weights_revision", "dtype", "quantization", "tokenizer_revision", "chat_template_digest"]
)
def test_every_field_makes_another_identity(field):
    """Two revisions of one name, another quantisation, another template: other keys, so marks stay invisible."""
    other = BASE.model_copy(update={field: IdentityField(declared="something else")})
    assert other.digest() != BASE.digest()
    assert ids.mark_key("t", other.digest(), "id", "r") != ids.mark_key("t", BASE.digest(), "id", "r")


def test_adapters_have_an_identity_of_their_own():
    first = BASE.for_adapter("sql", IdentityField(declared="1"))
    second = BASE.for_adapter("sql", IdentityField(declared="2"))
    assert len({BASE.digest(), first.digest(), second.digest()}) == 3
    assert (first.adapter, first.model) == ("sql", "m")
    with pytest.raises(ValidationError, match="needs adapter_version"):
        BASE.for_adapter("sql", IdentityField())
    with pytest.raises(ValidationError, match="without an adapter"):
        ServingIdentity(model="m", adapter_version=IdentityField(declared="1"))
    with pytest.raises(ConfigurationError, match="needs an identity with an adapter"):
        ids.adapter_key(BASE)


@pytest.mark.parametrize(
    "changed", [{"embedder": "other"}, {"revision": "2"}, {"dimensions": 512}, {"lexicon_version": "l1"}]
)
def test_another_embedder_or_lexicon_misses_everything_embedded_before(changed):
    other = EMBEDDER.model_copy(update=changed)
    assert ids.embedding_key("t", other, "p") != ids.embedding_key("t", EMBEDDER, "p")


def test_identities_are_frozen_and_refuse_unknown_fields():
    with pytest.raises(ValidationError):
        BASE.model = "other"
    with pytest.raises(ValidationError, match="Extra inputs"):
        ServingIdentity(model="m", revision="r1")
    with pytest.raises(ValidationError):
        ServingIdentity(model="")


def test_pinned_digests():
    """These stand in Redis and in lakes; a change of any needs a new KEY_SCHEMA."""
    assert ids.KEY_SCHEMA == "wt1"
    assert ServingIdentity(model="m").digest() == hashlib.sha256(
        b'{"adapter":null,"adapter_version":null,"chat_template_digest":null,"dtype":null,"model":"m",'
        b'"quantization":null,"tokenizer_revision":null,"weights_revision":null}'
    ).hexdigest()  # fmt: skip
    assert (
        EMBEDDER.digest()
        == hashlib.sha256(
            b'{"dimensions":384,"embedder":"feature-hashing","lexicon_version":"none","revision":"1"}'
        ).hexdigest()
    )
