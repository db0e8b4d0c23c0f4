"""What is declared, reported and observed stands side by side; several processes behind one address are no replica."""

import pytest

from tests.support.balancer import balancer
from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.agent.settings import AgentSettings
from warmup_tasks.agent.watch import ReplicaWatch
from warmup_tasks.engines.base import AdapterListing, Capabilities, EngineReport
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.engines.identity_evidence import (
    adapter_evidence,
    contradictions,
    seen_identity,
    table_of,
    unverified,
    version_note,
)
from warmup_tasks.engines.processes import check_one_process
from warmup_tasks.engines.survey import survey
from warmup_tasks.errors import GiveUpError
from warmup_tasks.fleet_file import AdapterSpec, FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.serving.epochs import EpochStore

SPEC = AdapterSpec(name="sql", version="3", path="/adapters/sql-3", base_model="m")


def capabilities(*models: str) -> Capabilities:
    return Capabilities("vllm", "0.32.0", models, 16, 1000, 500, True, True, False, True, False, False)


def report(**said) -> EngineReport:
    return EngineReport(
        **{"model": "m", "root": None, "dtype": None, "quantization": None, "weights_revision": None, **said}
    )


def test_each_field_shows_its_sources_and_what_verifies_it():
    declared = ModelSpec(
        name="m", weights_revision="r1", dtype="bf16", quantization="fp8", tokenizer_revision="t1"
    ).identity()
    seen = seen_identity(declared, report(dtype="bfloat16", quantization="awq"), "d1", weights_observed=True)
    rows = {row.field: row for row in table_of(seen, capabilities("m"))}
    assert {name: row.evidence for name, row in rows.items()} == {
        "model": "reported",
        "weights_revision": "observed",
        "dtype": "reported",
        "quantization": "contradicted",
        "tokenizer_revision": "unverified",
        "chat_template_digest": "observed",
    }
    assert rows["weights_revision"][1:4] == ("r1", None, "r1")
    assert unverified(rows.values()) == ["tokenizer_revision"]
    assert [problem.split(":")[0] for problem in contradictions(seen, capabilities("m"))] == ["quantization"]
    assert not rows["quantization"].is_verified


def test_a_model_that_is_not_served_is_contradicted():
    seen = seen_identity(ModelSpec(name="m").identity(), report(), None)
    assert contradictions(seen, capabilities("n"))[0].startswith("model: declared 'm', served n")
    assert table_of(seen, capabilities("n"))[0].evidence == "contradicted"


@pytest.mark.parametrize(
    ("root", "is_proved", "evidence"),
    [
        ("/adapters/sql-3", None, "reported"),
        ("/adapters/sql-3", True, "observed"),
        ("/adapters/sql-3", False, "contradicted"),
        ("/adapters/sql-2", True, "contradicted"),
        (None, None, "unverified"),
    ],
)
def test_an_adapter_is_reported_by_its_path_and_observed_by_its_canary(root, is_proved, evidence):
    listed = [AdapterListing("other", "/x", "m"), AdapterListing("sql", root, "m")]
    assert adapter_evidence(SPEC, listed, is_proved=is_proved).evidence == evidence


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("0.10.2", None),
        ("0.33.0", None),
        ("0.9.2", "was not tested"),
        ("0.34.0", "was not tested"),
        ("dev", "tell a version"),
    ],
)
def test_versions_outside_the_tested_ones_are_told(version, says):
    note = version_note(version)
    assert note is None if says is None else says in (note or "")


async def test_several_processes_behind_one_address_are_refused_with_that_reason(redis_client):
    with start_double(time_scale=0.0) as one, start_double(time_scale=0.0) as two:
        async with balancer(one.url, two.url) as shared, balancer(one.url) as alone:
            replicas = [
                ReplicaSpec(name=name, url=url, profile="large", model="double-base")
                for name, url in (("shared", shared), ("alone", alone))
            ]
            await check_one_process(open_engine, replicas[1], deadline_s=10)
            with pytest.raises(GiveUpError, match="2 engine processes answer behind"):
                await check_one_process(open_engine, replicas[0], deadline_s=10)
            fleet = FleetFile(
                models=[ModelSpec(name="double-base")], replicas=replicas,
                embedder={"embedder": "e", "revision": "1", "dimensions": 4},
            )  # fmt: skip
            found = await survey(fleet, "run", {}, open_engine=open_engine, deadline_s=20, seed=1)
            assert [state.replica for state in found.states] == ["alone"]
            assert "an address of its own" in found.problems["shared"]
            async with open_engine(replicas[0]) as engine:
                watch = ReplicaWatch("shared", engine, EpochStore(redis_client), AgentSettings(), AgentMetrics())
                seen = [await watch.look() for _ in range(6)]
            assert seen[2:] == [None] * 4
            assert EpochStore(redis_client).read("shared") is None


async def test_slots_are_known_once_an_adapter_was_asked_for(tmp_path):
    from tests.support.small_night import write_adapter
    from warmup_tasks.engines.canary import touch

    with start_double(time_scale=0.0, max_loras=3) as double:
        replica = ReplicaSpec(name="r0", url=double.url, profile="large", model="double-base")
        async with open_engine(replica) as engine:
            await engine.load_adapter("sql", str(write_adapter(tmp_path / "sql")), deadline_s=5)
            await touch(engine, "sql", deadline_s=5)
            assert (await engine.metrics(deadline_s=5)).max_adapters == 3
