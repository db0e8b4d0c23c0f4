"""``warmup tune`` as it is typed: over a log before there is a fleet, over a site's lake, and its refusals."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from tests.support.service_log import rows_of, service_requests, states
from warmup_tasks.cli import app
from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.fleet_file import FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.items import ReplicaState
from warmup_tasks.lake.schemas import REQUESTS, to_table
from warmup_tasks.lake.store import Lake

CALL = CliRunner()
LINE = ["--base-ms", "20", "--ms-per-token", "0.02"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trace of 2,400 requests in half an hour, 512-token blocks."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    times, names = service_requests(1800, 1.5, 30)
    rows = [
        {"timestamp": int(1000 * moment), "input_length": 512 * len(blocks), "output_length": 9, "hash_ids": blocks}
        for moment, blocks in zip(times, names, strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WARMUP_LAKE", "WARMUP_REDIS_URL", "WARMUP_FLEET"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_site")
def test_a_log_is_tuned_before_there_is_a_fleet(trace, tmp_path):
    page = tmp_path / "tuning.html"
    asked = ["tune", "--log", trace, "--capacity", "1500000", *LINE, "--trials", "14", "--plot", str(page), "--json"]
    answer = CALL.invoke(app, asked)
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    one = found["classes"][0]
    assert (found["state"], one["requests"], one["trials"]) == ("done", 2700, 14)
    assert one["objective_last"] is not None
    assert page.read_text(encoding="utf-8").count("<svg") == 4


@pytest.mark.usefixtures("no_site")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "GPU KV cache size"),
        (["--capacity", "1000"], "--base-ms"),
        (["--capacity", "1000", "--base-ms", "3"], "both --base-ms and --ms-per-token"),
    ],
)
def test_what_a_log_does_not_say_is_asked_for(trace, options, said):
    answer = CALL.invoke(app, ["tune", "--log", trace, *options])
    assert answer.exit_code != 0
    assert said in " ".join(answer.output.replace("│", " ").split())


@pytest.mark.usefixtures("no_site")
def test_without_log_and_site_the_message_names_what_to_set():
    answer = CALL.invoke(app, ["tune"])
    assert answer.exit_code == 1
    assert "WARMUP_LAKE" in answer.output


def test_a_site_gets_new_values_for_its_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    as_of = datetime(2026, 11, 27, 12, tzinfo=UTC)
    lake = Lake(str(tmp_path / "lake"))
    rows = rows_of(*service_requests(2000, 1.0, 40), begin=as_of - timedelta(seconds=2000))
    lake.publish("requests", "2026-11-27", {"requests": pa.Table.from_pylist(rows, schema=REQUESTS)})
    fleet = FleetFile(
        models=[ModelSpec(name="m", weights_revision="r1")],
        replicas=[ReplicaSpec(name="m-0", url="http://m-0", profile="small", model="m")],
        embedder=default_embedder_identity(),
    )
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(fleet.model_dump(mode="json")))
    for name, value in {"LAKE": lake.uri, "REDIS_URL": "redis://127.0.0.1:1/0", "FLEET": str(path)}.items():
        monkeypatch.setenv(f"WARMUP_{name}", value)
    asked = ["tune", "--as-of", as_of.isoformat(), "--trials", "20"]
    early = CALL.invoke(app, asked)
    assert early.exit_code == 1
    assert "no replica was surveyed yet" in " ".join(early.output.split())
    lake.publish("replicas", "20261127T020000Z-00000000", {"replicas": to_table(states(), ReplicaState)})
    answer = CALL.invoke(app, asked)
    assert answer.exit_code == 0, answer.output
    assert "tuned values published" in answer.output
    assert lake.partitions("tuning") == ["m.base.chat.20261127T120000Z"]
