"""Identity is evidence: what is unverified is shown, what the policy requires must be verified, versions stay apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import yaml

from tests.support.small_night import MODEL, PROFILE, SmallNight, key, write_adapter
from warmup_tasks import upkeep
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.items import ItemKind, Reason
from warmup_tasks.serving.invalidate import Invalidator
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.reader import Hit, Miss, ReaderClient
from warmup_tasks.settings import Site

SETTINGS = {"num_gpu_blocks": 600, "time_scale": 1.0, "developer_mode": True}


@pytest.fixture
def doubles() -> Iterator[dict]:
    with start_double(**SETTINGS) as one, start_double(**SETTINGS, weights_revision="green") as two:
        yield {"a": one, "b": two}


def adapter_spec(folder: Path) -> AdapterSpec:
    return AdapterSpec(name="sql", version="1", path=str(write_adapter(folder / "sql")), base_model=MODEL)


def test_the_table_stands_in_the_evidence_and_in_the_status(tmp_path: Path, redis_client, redis_url, doubles):
    night = SmallNight(
        tmp_path, redis_client, {"a": doubles["a"]}, adapters=[adapter_spec(tmp_path)],
        model={"dtype": "float16", "tokenizer_revision": "t1"},
    )  # fmt: skip
    night.adapter("a", "sql")
    night.prefix("a", night.tokens(1, 40), order=0)
    night.whole()
    rows = {row["field"]: row for row in night.lake.meta(f"evidence/{night.run.run_id}.{PROFILE}")["identity"]["a"]}
    assert rows["weights_revision"]["evidence"] == "observed"
    assert rows["adapter_version of sql"]["evidence"] == "observed"
    assert rows["tokenizer_revision"]["evidence"] == "unverified"
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(night.fleet.model_dump(mode="json")))
    site = Site(
        lake_uri=str(tmp_path / "lake"), redis_url=redis_url, fleet_path=str(tmp_path / "fleet.yaml"), profiles_path=""
    )
    shown = upkeep.status(site)["a"]["identity"]
    assert shown["tokenizer_revision"] == "unverified (declared t1)"
    assert shown["weights_revision"] == "observed (declared r1, observed r1)"


@pytest.mark.parametrize(("required", "reason"), [(["tokenizer_revision"], Reason.IDENTITY_UNVERIFIED), ([], None)])
def test_the_policy_decides_about_a_field_that_nothing_verifies(
    tmp_path: Path, redis_client, doubles, required, reason
):
    night = SmallNight(
        tmp_path, redis_client, {"a": doubles["a"]}, model={"tokenizer_revision": "t1"},
        policy={"required_evidence": required, "max_failure_share": 1.0},
    )  # fmt: skip
    rows = [night.prefix("a", night.tokens(1, 40), order=0), night.stored(ItemKind.RESPONSE, "hello")]
    free = night.stored(ItemKind.EMBEDDING, "hello")
    night.whole()
    found = night.quarantine()
    assert [found.get(key(row)) for row in rows] == [reason, reason]
    assert key(free) not in found, "an embedding is not made by the model"


def test_an_adapter_that_answers_otherwise_under_its_name_and_path_is_refused_with_its_items(
    tmp_path: Path, redis_client, doubles
):
    spec = adapter_spec(tmp_path)
    night = SmallNight(tmp_path, redis_client, {"a": doubles["a"]}, adapters=[spec], policy={"max_failure_share": 1.0})
    items = [
        night.adapter("a", "sql"),
        night.prefix("a", night.tokens(1, 40), order=0, adapter="sql"),
        night.stored(ItemKind.RESPONSE, "hello", adapter="sql"),
    ]
    base = [night.prefix("a", night.tokens(2, 40), order=1), night.stored(ItemKind.RESPONSE, "hello")]
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()
    write_adapter(Path(spec.path), b"two")
    night.control_text("a", "/v1/load_lora_adapter", lora_name="sql", lora_path=spec.path, load_inplace=True)
    night.publish_epochs()
    night.probe()
    night.publish()
    found = night.quarantine()
    assert [found.get(key(row)) for row in items] == [Reason.ADAPTER_STALE_PATH] * 3
    assert [found.get(key(row)) for row in base] == [None, None]


@pytest.mark.parametrize("declared", [("r1", "r2"), (None, None)])
def test_new_base_weights_are_no_change_of_their_adapters(tmp_path: Path, redis_client, doubles, declared):
    """On top of other weights every adapter answers otherwise: it is compared with what it answered on top of these."""
    spec = adapter_spec(tmp_path)
    for number, (revision, deployed) in enumerate(zip(declared, ("r1", "r2"), strict=True)):
        night = SmallNight(
            tmp_path, redis_client, {"a": doubles["a"]}, adapters=[spec], request={"seed": number},
            model={"weights_revision": revision},
        )  # fmt: skip
        night.control("a", "/double/weights", revision=deployed)
        night.control("a", "/double/restart")
        night.adapter("a", "sql")
        night.prefix("a", night.tokens(1, 40), order=0, adapter="sql")
        night.whole()
        assert night.quarantine() == {}


def test_blue_and_green_of_one_name_never_see_each_other(tmp_path: Path, redis_client: redis.Redis, doubles):
    """Two fleets serve two revisions of one model name side by side, over one Redis and one lake."""
    nights = {
        revision: SmallNight(
            tmp_path / "shared", redis_client, {name: doubles[name]}, model={"weights_revision": revision},
            request={"seed": seed},
        )
        for seed, (revision, name) in enumerate({"blue": "a", "green": "b"}.items())
    }  # fmt: skip
    for revision, night in nights.items():
        (replica,) = night.urls
        night.prefix(replica, night.tokens(1, 40), order=0)
        night.stored(ItemKind.RESPONSE, "hello")
        assert night.whole()["ready"] == 2, revision
    reader = ReaderClient(redis_client)
    identities = {revision: night.fleet.identity(MODEL) for revision, night in nights.items()}
    (payload,) = (p for p in nights["blue"].payloads.values() if p.token_ids is None)
    answers = {r: reader.response(None, identity, payload.prompt_sha256) for r, identity in identities.items()}
    assert all(isinstance(answer, Hit) for answer in answers.values())
    assert answers["blue"].value.identity_digest != answers["green"].value.identity_digest
    assert answers["blue"].value.text != answers["green"].value.text
    ids = {revision: {row.item_id for row in night.rows} for revision, night in nights.items()}
    assert ids["blue"].isdisjoint(ids["green"])
    done = Invalidator(redis_client).invalidate(Reach(model=MODEL, weights_revision="blue"))
    assert set(done.item_ids) == ids["blue"]
    assert isinstance(reader.response(None, identities["blue"], payload.prompt_sha256), Miss)
    assert isinstance(reader.response(None, identities["green"], payload.prompt_sha256), Hit)
    assert {mark.item_id for mark in MarkStore(redis_client).find(Reach(model=MODEL))} == ids["green"]


def test_an_item_that_was_taken_out_gets_no_mark_from_a_night_under_way(tmp_path: Path, redis_client, doubles):
    night = SmallNight(tmp_path, redis_client, {"a": doubles["a"]})
    out, stays = (night.prefix("a", night.tokens(seed, 40), order=seed) for seed in (0, 1))
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()
    night.publish_epochs()
    night.probe()
    Invalidator(redis_client).invalidate(Reach(item_id=out.item_id))
    night.publish()
    assert {mark.item_id for mark in MarkStore(redis_client).find(Reach(replica="a"))} == {stays.item_id}


def test_a_revision_that_is_declared_but_not_deployed_is_seen(tmp_path: Path, redis_client):
    """A release reaches a replica that still serves the old weights; a production engine does not report them."""
    with start_double(**{**SETTINGS, "developer_mode": False}) as double:

        def night(revision: str) -> SmallNight:
            made = SmallNight(tmp_path, redis_client, {"a": double}, model={"weights_revision": revision})
            made.prefix("a", made.tokens(1, 40), order=0)
            return made

        assert night("r1").whole()["ready"] == 1
        night("r1").control("a", "/double/restart")
        assert night("r1").whole()["ready"] == 1
        early = night("r2")
        assert early.whole()["reasons"] == {Reason.IDENTITY_CONTRADICTED: 1}
        said = early.lake.meta(f"evidence/{early.run.run_id}.{PROFILE}")["contradictions"]["a"]
        assert said[0].startswith("weights_revision: declared r2, but the process that answered the canary as r1")
        early.control("a", "/double/weights", revision="r2")
        early.control("a", "/double/restart")
        assert night("r2").whole()["ready"] == 1
