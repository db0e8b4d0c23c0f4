"""docs/contracts.md is the contract: its tables are held against the code, so a change of either shows here.

Every table of every data set stands there with its columns and types in order; every parameter and every field of the
configuration files with what it takes. A column that changes without its line fails, and so does the reverse.
"""

import re
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pydantic import BaseModel

from tests.benchmarks.harness import BenchResult
from warmup_tasks import fleet_file, fleet_sources, identity, items, releases, settings
from warmup_tasks.demand import tables as demand_tables
from warmup_tasks.demand.tokens import TOKENS
from warmup_tasks.lake import schemas
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.reporting import model
from warmup_tasks.reporting.report import parameter_rows
from warmup_tasks.serving.events import LiveEvent
from warmup_tasks.tuning import nightly as tuning_accounts
from warmup_tasks.tuning import published as tuning_tables
from warmup_tasks.validation.publish import STRATA

DOCS = Path(__file__).resolve().parents[3] / "docs"

TABLES: dict[str, pa.Schema] = {
    "requests/<day>: requests": schemas.REQUESTS,
    "quarantine/<log digest>: quarantine": schemas.QUARANTINE,
    "feedback/<day>: feedback": schemas.FEEDBACK,
    "replicas/<run>: replicas": schemas.REPLICAS,
    "tokens/<identity>: tokens": TOKENS,
    "demand/<run>: nodes": demand_tables.NODES,
    "demand/<run>: reuse": demand_tables.REUSE,
    "demand/<run>: paths": demand_tables.PATHS,
    "demand/<run>: prompts": demand_tables.PROMPTS,
    "demand/<run>: intents": demand_tables.INTENTS,
    "demand/<run>: adapters": demand_tables.ADAPTERS,
    "demand/<run>: refused": demand_tables.REFUSED,
    "plan/<run>: plan": schemas.PLAN,
    "plan/<run>: payloads": schemas.PAYLOADS,
    "twins/<run>.<profile>: twins": schemas.TWINS,
    "receipts/<run>.<shard>: receipts": schemas.RECEIPTS,
    "evidence/<run>.<profile>: evidence": schemas.EVIDENCE,
    "marks/<run>: marks": schemas.MARKS,
    "marks/<run>: strata": STRATA,
    "replay/<run>.<profile>.<arm>: replay": schemas.REPLAY,
    "tuning/<class>.<as_of>: parameters": tuning_tables.PARAMETERS,
    "tuning_nights/<run>: trials": tuning_accounts.TRIALS,
    "tuning_nights/<run>: curves": tuning_accounts.CURVES,
    "fingerprints/<replica>: fingerprints": schemas.FINGERPRINTS,
}
FILES: dict[str, type[BaseModel]] = {
    "profiles file: profile": settings.HardwareProfile,
    "fleet file": fleet_file.FleetFile,
    "fleet file: model": fleet_file.ModelSpec,
    "fleet file: replica": fleet_file.ReplicaSpec,
    "fleet file: TLS": fleet_sources.TlsSpec,
    "fleet file: discovery by DNS": fleet_sources.DnsSource,
    "fleet file: discovery by Kubernetes": fleet_sources.KubernetesSource,
    "fleet file: adapter": fleet_file.AdapterSpec,
    "fleet file: tenant": fleet_file.TenantSpec,
    "fleet file: embedder": identity.EmbedderIdentity,
    "fleet file: embedder endpoint": fleet_file.EmbedderEndpoint,
    "live event": LiveEvent,
    "run request": settings.RunRequest,
    "release: change": releases.Change,
    "run policy": settings.RunPolicy,
    "summary.json": model.RunSummary,
    "summary.json: items": model.ItemCounts,
    "summary.json: replica": model.ReplicaFigures,
    "summary.json: tuned class": model.TunedClass,
    "benchmark JSON": BenchResult,
}


def sections(text: str) -> dict[str, list[list[str]]]:
    """Heading of each third-level section → the rows of its table, cells stripped, header and rule left out."""
    found: dict[str, list[list[str]]] = {}
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if line.startswith("|")]
        found[heading.strip().strip("`")] = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]
        ]
    return found


CONTRACTS = sections((DOCS / "contracts.md").read_text(encoding="utf-8"))


def type_name(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {type_name(kind.value_type)}"
    return {"timestamp[us, tz=UTC]": "time", "double": "float64"}.get(str(kind), str(kind))


@pytest.mark.parametrize("heading", TABLES)
def test_columns_and_types_are_pinned(heading):
    rows = CONTRACTS[heading]
    assert [(row[0].strip("`"), row[1]) for row in rows] == [
        (column.name, type_name(column.type)) for column in TABLES[heading]
    ]
    assert all(len(row) == 3 and len(row[2]) > 2 for row in rows), "each column says what it means"


@pytest.mark.parametrize("heading", FILES)
def test_fields_of_files_are_listed(heading):
    rows = CONTRACTS[heading]
    assert [row[0].strip("`") for row in rows] == list(FILES[heading].model_fields)
    assert all(len(row[-1]) > 2 for row in rows)
    for row in rows:
        if len(row) == 3 and FILES[heading] is not model.RunSummary:
            field = FILES[heading].model_fields[row[0].strip("`")]
            assert (row[1] == "required") == field.is_required(), f"{heading}: {row[0]}"


def test_parameters_are_listed_with_their_ranges():
    rows = parameter_rows(GoldenParameters().model_dump(mode="json"))
    expected = [[r["name"], r["value"], r["range"], r["unit"], r["sensitivity"], r["retune"], r["doc"]] for r in rows]
    assert [[cell.strip("`") for cell in row] for row in CONTRACTS["parameters"]] == expected


def test_every_stored_record_and_schema_is_documented():
    documented = set(map(id, TABLES.values()))
    for module in (schemas, demand_tables):
        assert {name for name in own_schemas(module) if id(getattr(module, name)) not in documented} == set()
    records = {cls for cls in items.Record.__subclasses__() if cls.__module__ == items.__name__}
    assert {cls.__name__ for cls in records} - {"PromptBody"} == {
        "PlanRow", "Payload", "ReplicaState", "TwinResult", "Receipt", "Evidence", "ReplayRow", "Fingerprint", "Mark",
        "Feedback",
    }  # fmt: skip


def own_schemas(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, pa.Schema)]


def test_reasons_and_kinds_are_listed():
    assert [row[0] for row in CONTRACTS["item kinds"]] == [f"`{kind}`" for kind in items.ItemKind]
    assert [row[0] for row in CONTRACTS["reasons"]] == [str(reason) for reason in items.Reason]


def test_key_forms_are_listed_as_the_code_makes_them():
    forms = {row[0]: row[1].strip("`") for row in CONTRACTS["keys"]}
    base = identity.ServingIdentity(model="m")
    lora = base.for_adapter("sql", identity.IdentityField(declared="1"))
    space = identity.namespace("acme/eu", base.digest())
    made = {
        "prompt embedding": identity.embedding_key("acme/eu", base.digest(), "<prompt>"),
        "default response": identity.response_key("acme/eu", base, "<prompt>"),
        "adapter entry": identity.adapter_key(lora).replace(identity.namespace(None, lora.digest()), space),
        "frequent QA pair": identity.qa_key("acme/eu", base, "<intent>"),
        "mark": identity.mark_key("acme/eu", base.digest(), "<item>", "<replica>"),
        "epoch": identity.epoch_key("<replica>"),
        "readiness": identity.readiness_key("<model>", "<replica>"),
        "generation": identity.generation_key("<replica>"),
        "observation": identity.observation_key("<replica>"),
        "tombstone": identity.tombstone_key("<item>"),
        "lease": identity.lease_key("<name>"),
        "queue": identity.queue_key("<name>", "<what>"),
        "fence": identity.fence_key("<name>"),
        "events": identity.events_key(),
        "announced": identity.announced_key(),
        "outcomes": identity.outcomes_key(),
        "reaction": identity.reaction_key("<replica>"),
        "run figures": identity.run_figures_key(),
        "identity record": identity.identity_record_key("<identity>"),
        "index": identity.index_key(space),
        "namespaces": identity.NAMESPACES_KEY,
    }  # fmt: skip
    plain = {
        name: key.replace(space, "<namespace>").replace("%3C", "<").replace("%3E", ">") for name, key in made.items()
    }
    plain["adapter entry"] = plain["adapter entry"].replace("lora:m:sql", "lora:<model>:<adapter>")
    assert plain == forms
    makers = {name for name in vars(identity) if name.endswith("_key")}
    assert len(makers - {"adapter_entry_key"}) + 1 == len(forms), "a new kind of key needs its line"


def test_no_schema_refuses_what_it_wrote():
    for record in (items.PlanRow, items.Receipt, items.Evidence, items.Mark, items.Feedback):
        assert schemas.from_table(schemas.to_table([], record), record) == []


def test_rows_of_another_schema_version_are_refused():
    from warmup_tasks.errors import ContractError

    table = pa.Table.from_pylist([{"schema_version": 2}], schema=schemas.FEEDBACK)
    with pytest.raises(ContractError, match=r"Feedback rows of schema version \[2\]; this code reads 1"):
        schemas.from_table(table, items.Feedback)


@pytest.mark.parametrize("name", ["architecture.md", "contracts.md", "glossary.md"])
def test_links_lead_somewhere(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (DOCS / target).exists(), target
    for path in re.findall(r"`(warmup_tasks/[\w/]+\.py|tests/[\w/]+(?:\.py)?|sql/[\w/]+)`", text):
        assert (DOCS.parent / path).exists(), path


def test_the_glossary_has_the_words_of_the_domain():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    words = {"request log", "item", "serving identity", "replica", "epoch", "wave", "shard", "plan", "receipt", "mark"}
    words |= {
        "ready",
        "prefix-run hit",
        "traffic class",
        "tenant class",
        "horizon",
        "twin",
        "stratum",
        "residency",
        "salt",
    }
    assert words <= {word.strip("*") for word in re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)}
