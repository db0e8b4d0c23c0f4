"""A release against a real Redis: what is void, what stands, what a bad canary takes back, what settling drops."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
import yaml

from warmup_tasks import rollout
from warmup_tasks.errors import ConfigurationError, GiveUpError
from warmup_tasks.fleet_file import FleetFile, load_fleet
from warmup_tasks.identity import EmbedderIdentity
from warmup_tasks.items import EvidenceKind, GainBasis, ItemKind, Mark, PlanRow, Residency
from warmup_tasks.lake import Lake
from warmup_tasks.releases import Release
from warmup_tasks.rollout import Part
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.namespaces import Namespace, NamespaceIndex
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore
from warmup_tasks.settings import RunRequest, Site

NOW = datetime.now(UTC)
R2 = {"what": "model", "name": "m", "version": "r2"}
SQL2 = {"what": "adapter", "name": "sql", "version": "2", "path": "/adapters/sql-2"}
FLEET = {
    "models": [{"name": "m", "weights_revision": "r1"}, {"name": "other", "weights_revision": "1"}],
    "replicas": [
        {"name": name, "url": f"http://127.0.0.1:{port}", "profile": "large", "model": model}
        for port, (name, model) in enumerate({"a": "m", "b": "m", "x": "other"}.items(), start=1)
    ],
    "adapters": [
        {"name": name, "version": "1", "path": f"/adapters/{name}", "base_model": "m"} for name in ("sql", "chat")
    ],
    "embedder": {"embedder": "e", "revision": "1", "dimensions": 4},
}


@pytest.fixture
def site(tmp_path: Path, redis_url: str) -> Site:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(FLEET))
    return Site(lake_uri=str(tmp_path / "lake"), redis_url=redis_url, fleet_path=str(path), profiles_path="")


def release_run(site: Site, part: Part | None, *changes: dict[str, Any], **request: Any) -> Run:
    """The run of a part, or (None) of the whole release."""
    run, release = Run.of(RunRequest(as_of=NOW, **request)), Release.of(changes, "test")
    found = run.in_release(release) if part is None else rollout.run_of(site, run, release, part)
    assert found is not None
    return found


def mark(fleet: FleetFile, replica: str | None, number: int, model: str = "m", adapter: str | None = None, **more: Any):
    values: dict[str, Any] = {
        "item_id": f"{number:032x}", "kind": ItemKind.RESPONSE if replica is None else ItemKind.KV_PREFIX,
        "tenant": None, "replica": replica, "model": model, "adapter": adapter,
        "identity_digest": fleet.identity(model, adapter).digest(), "epoch": replica and f"epoch of {replica}",
        "run_id": "night", "as_of": NOW - timedelta(hours=8), "marked_at": NOW, "expires_at": NOW + timedelta(hours=1),
        "residency": Residency.HIT, "evidence_kind": EvidenceKind.CACHED_TOKENS, "gain_basis": GainBasis.MEASURED,
        "embedder_digest": fleet.embedder.digest() if replica is None else None,
    }  # fmt: skip
    return Mark(**(values | more))


@pytest.fixture
def before(site: Site, redis_client: redis.Redis) -> dict[str, Mark]:
    """Marks of a night, and its readiness."""
    fleet = load_fleet(site.fleet_path)
    marks = {
        "base on a": mark(fleet, "a", 1), "base on b": mark(fleet, "b", 1),
        "sql on a": mark(fleet, "a", 2, adapter="sql"), "chat on b": mark(fleet, "b", 3, adapter="chat"),
        "other": mark(fleet, "x", 4, model="other"),
        "answer": mark(fleet, None, 5), "sql's answer": mark(fleet, None, 6, adapter="sql"),
    }  # fmt: skip
    MarkStore(redis_client).put_many(list(marks.values()), NOW)
    for name, model in (("a", "m"), ("b", "m"), ("x", "other")):
        EpochStore(redis_client).publish(EpochRecord(replica=name, epoch=f"epoch of {name}", observed_at=NOW))
        ReadinessStore(redis_client).put(ready(fleet, name, model), NOW)
    return marks


def ready(fleet: FleetFile, replica: str, model: str = "m", **more: Any) -> ReadinessRecord:
    values = {"run_id": "night", "planned": 2, "ready": 2, "share": 1.0, "is_ready": True, "as_of": NOW}
    return ReadinessRecord(
        model=model, replica=replica, epoch=f"epoch of {replica}", identity_digest=fleet.identity(model).digest(),
        expires_at=NOW + timedelta(hours=1), **(values | more),
    )  # fmt: skip


def standing(client: redis.Redis, marks: dict[str, Mark]) -> set[str]:
    found = MarkStore(client).get_many([MarkAddress.of(one) for one in marks.values()])
    return {name for name, one in zip(marks, found, strict=True) if one is not None}


def test_a_model_s_release_voids_its_canary_alone(site: Site, redis_client: redis.Redis, before: Any) -> None:
    run = release_run(site, Part.CANARY, R2)
    assert (run.request.replicas, run.request.models) == (["a"], ["m"])
    dry = run.model_copy(update={"request": run.request.model_copy(update={"dry_run": True})})
    assert rollout.void(site, dry)["marks"] == 2
    assert standing(redis_client, before) == set(before)
    assert rollout.void(site, run)["marks"] == 2
    assert set(before) - standing(redis_client, before) == {"base on a", "sql on a"}
    assert ReadinessStore(redis_client).read("m", "a") is None
    assert ReadinessStore(redis_client).read("m", "b") is not None
    assert rollout.void(site, run)["marks"] == 0
    rest = release_run(site, Part.REST, R2)
    assert rest.request.replicas == ["b"]
    rollout.void(site, rest)
    assert standing(redis_client, before) == {"other", "answer", "sql's answer"}


def test_an_adapter_s_release_leaves_the_base_model_and_others_alone(
    site: Site, redis_client: redis.Redis, before: Any
) -> None:
    run = release_run(site, Part.CANARY, SQL2)
    rollout.void(site, run)
    assert set(before) - standing(redis_client, before) == {"sql on a"}
    assert run.release is not None
    row = PlanRow.model_construct(kind=ItemKind.RESPONSE, adapter=None)
    assert run.release.spares(row)
    assert not run.release.spares(row.model_copy(update={"adapter": "sql"}))
    assert not run.release.spares(row.model_copy(update={"kind": ItemKind.KV_PREFIX}))


def test_a_bad_canary_takes_back_its_own_and_tells_what_is_still_true(
    site: Site, redis_client: redis.Redis, before: Any
) -> None:
    run = release_run(site, Part.CANARY, R2)
    rollout.void(site, run)
    assert run.release is not None
    new = run.release.declared(load_fleet(site.fleet_path))
    MarkStore(redis_client).put_many([mark(new, "a", 1, run_id=run.run_id, as_of=NOW)], NOW)
    ReadinessStore(redis_client).put(ready(new, "a", run_id=run.run_id), NOW)
    assert rollout.take_back(site, run) == {"marks_voided": 1, "still_true": {"b": 2, "serving store": 2}}
    assert ReadinessStore(redis_client).read("m", "a") is None
    assert standing(redis_client, before) == set(before) - {"base on a", "sql on a"}
    EpochStore(redis_client).begin_generation("b")
    assert rollout.take_back(site, run) == {"marks_voided": 0, "still_true": {"b": 0, "serving store": 2}}


def test_settling_waits_for_the_fleet_file_and_drops_the_old(
    site: Site, redis_client: redis.Redis, before: Any
) -> None:
    whole = release_run(site, None, R2)
    with pytest.raises(ConfigurationError, match=r"write it into the fleet file \(model m r2\)"):
        rollout.settle(site, whole)
    assert standing(redis_client, before) == set(before)
    assert whole.release is not None
    declared = whole.release.declared(load_fleet(site.fleet_path))
    Path(site.fleet_path).write_text(yaml.safe_dump(declared.model_dump(mode="json")))
    some = release_run(site, None, R2, replicas=["a"])
    assert rollout.settle(site, some)["is_dropped"] is False
    assert rollout.settle(site, whole)["is_dropped"] is True
    assert standing(redis_client, before) == {"other"}


def test_an_embedder_s_release_reaches_answers_and_no_replica(
    site: Site, redis_client: redis.Redis, before: Any
) -> None:
    fleet = load_fleet(site.fleet_path)
    IdentityBook(redis_client).remember([fleet.embedder])
    digest = fleet.embedder.digest()
    vector = mark(fleet, None, 9, kind=ItemKind.EMBEDDING, identity_digest=digest, embedder_digest=None)
    MarkStore(redis_client).put_many([vector], NOW)
    where = Namespace(tenant=None, identity_digest=digest, embedder="e", embedder_revision="1")
    NamespaceIndex(redis_client).register({where: NOW + timedelta(hours=1)}, NOW)
    lexicon = {"what": "lexicon", "version": "v2"}
    assert rollout.run_of(site, Run.of(RunRequest(as_of=NOW)), Release.of([lexicon], "test"), Part.CANARY) is None
    run = release_run(site, Part.REST, lexicon)
    assert (run.request.replicas, run.request.models) == (["a", "b", "x"], [])
    rollout.void(site, run)
    marks = {**before, "vector": vector}
    assert set(marks) - standing(redis_client, marks) == {"vector", "answer", "sql's answer"}


def test_a_canary_is_judged_by_its_run_and_its_readiness(site: Site, redis_client: redis.Redis, before: Any) -> None:
    run, lake = release_run(site, Part.CANARY, R2), Lake(site.lake_uri)
    reasons = pa.table({"reason": ["not resident: the probe missed"] * 3})

    def published(*, is_published: bool) -> None:
        meta = {"is_published": is_published, "failure_share": 0.75, "broken_expectations": []}
        lake.publish("marks", run.run_id, {"quarantine": reasons}, meta)

    published(is_published=False)
    with pytest.raises(GiveUpError, match=r"published nothing: 75% .* a is not ready: .*probe missed \(3\)"):
        rollout.judge(site, run)
    published(is_published=True)
    with pytest.raises(GiveUpError, match="another serving identity"):
        rollout.judge(site, run)
    assert run.release is not None
    new = run.release.declared(load_fleet(site.fleet_path))
    ReadinessStore(redis_client).put(ready(new, "a", run_id=run.run_id), NOW)
    assert rollout.judge(site, run)["verdict"] == "good"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"what": "model", "name": "nobody", "version": "2"}, "nobody"),
        ({"what": "model", "version": "2"}, "several"),
        ({"what": "adapter", "name": "nobody", "version": "2"}, "nobody"),
        ({"what": "embedder", "name": "f", "version": "2"}, "embedder is 'e'"),
        ({**R2, "canary": "x"}, "canary"),
        ({**R2, "path": "/p"}, "path"),
        ({"what": "weights", "version": "2"}, "what"),
        ({**R2, "colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_released_is_refused_by_name(site: Site, change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        release_run(site, Part.CANARY, change)


def test_the_last_event_about_one_thing_counts(site: Site) -> None:
    release = Release.of([R2, SQL2, {**R2, "version": "r3"}], "test")
    assert [change.version for change in release.changes] == ["r3", "2"]
    declared = release.declared(load_fleet(site.fleet_path))
    assert declared.model("m").weights_revision == "r3"
    sql = declared.adapter("sql")
    assert sql is not None
    assert (sql.version, sql.path) == ("2", "/adapters/sql-2")
    assert declared.embedder == EmbedderIdentity(embedder="e", revision="1", dimensions=4)
