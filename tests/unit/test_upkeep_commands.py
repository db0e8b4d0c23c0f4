"""The commands beside the night, as they are typed: a preview changes nothing, and a mistake is one message."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
import redis
import yaml
from typer.testing import CliRunner

from tests.support.small_night import now
from warmup_tasks.cli import app
from warmup_tasks.identity import ServingIdentity, digest
from warmup_tasks.items import EvidenceKind, GainBasis, ItemKind, Mark, Residency
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.tombstones import TombstoneStore

IDENTITY = ServingIdentity(model="m")


@pytest.fixture
def site(tmp_path: Path, redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = {
        "models": [{"name": "m"}],
        "replicas": [{"name": "r0", "url": "http://127.0.0.1:1", "profile": "large", "model": "m"}],
        "embedder": {"embedder": "e", "revision": "1", "dimensions": 4},
    }
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    for name, value in (("LAKE", tmp_path / "lake"), ("REDIS_URL", redis_url), ("FLEET", tmp_path / "fleet.yaml")):
        monkeypatch.setenv(f"WARMUP_{name}", str(value))
    moment = now()
    marks = [
        Mark(
            item_id=digest(n)[:32], kind=ItemKind.KV_PREFIX, tenant=None, replica="r0", model="m", adapter=None,
            identity_digest=IDENTITY.digest(), epoch="e1", run_id="run", as_of=moment, marked_at=moment,
            expires_at=moment + timedelta(hours=1), residency=Residency.HIT, evidence_kind=EvidenceKind.CACHED_TOKENS,
            gain_basis=GainBasis.NONE,
        )
        for n in range(3)
    ]  # fmt: skip
    MarkStore(redis_client).put_many(marks, moment)


def run(*words: str) -> dict:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.usefixtures("site")
def test_an_item_is_previewed_then_taken_out(redis_client):
    item, store = digest(1)[:32], MarkStore(redis_client)
    preview = run("invalidate", "--item", item, "--dry-run")
    assert (preview["is_dry_run"], preview["marks"], preview["item_ids"]) == (True, 1, [item])
    assert preview["why"] == {"kv_prefix": {"named by the operator": 1}}
    assert (store.count(Reach(model="m")), TombstoneStore(redis_client).item_ids()) == (3, frozenset())
    assert run("invalidate", "--item", item)["marks"] == 1
    assert (store.count(Reach(model="m")), TombstoneStore(redis_client).item_ids()) == (2, {item})


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["invalidate"], "say what to invalidate"),
        (["invalidate", "--model", "m", "--to", "r2"], "--from"),
        (["invalidate", "--model", "m", "--from", "r2", "--to", "r2"], "--from"),
        (["collect", "--older-than", "soon"], "for instance 14d"),
        (["collect", "--older-than", "0d"], "at least one day"),
    ],
)
def test_a_mistake_is_one_message(words, says):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert says in done.output.replace("\n", " ")


@pytest.mark.usefixtures("site")
def test_an_unreachable_replica_leaves_its_marks_alone_while_its_epoch_is_unknown(redis_client):
    assert run("recheck")["r0"]["renewed"] == 0
    assert run("collect")["partitions"] == []
    assert run("status")["r0"]["identity"] == {}
