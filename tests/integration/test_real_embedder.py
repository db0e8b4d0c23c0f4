"""Embeddings by a real model behind ``/v1/embeddings`` on vLLM: stored, read, swapped, refused."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from tests.support.small_night import SmallNight, key
from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.identity import EmbedderIdentity
from warmup_tasks.items import ItemKind, Outcome, PlanRow, Reason
from warmup_tasks.local.embedding_model import MODEL, embedding_model_identity, ensure_embedding_model
from warmup_tasks.local.vllm_cpu import VllmServer, start_embedder
from warmup_tasks.serving.reader import Hit, Miss, ReaderClient
from warmup_tasks.serving.values import EmbeddingValue

pytestmark = pytest.mark.real_engine

REPOSITORY = Path(__file__).resolve().parents[2]
QUESTIONS = ("How do I reset my password?", "I forgot my password, what now?", "What is the weather in Oslo?")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    model = ensure_embedding_model(REPOSITORY / "out" / "engine" / MODEL)
    with start_embedder(model, MODEL, tmp_path_factory.mktemp("embedder") / "vllm.log") as server:
        yield server


@pytest.fixture(scope="module")
def double() -> Iterator[DoubleProcess]:
    with start_double(time_scale=0.0) as double:
        yield double


def night_with(folder: Path, client: redis.Redis, double: DoubleProcess, by: EmbedderIdentity, url: str | None):
    endpoint = {"embedder_endpoint": {"url": url}} if url else {}
    return SmallNight(folder, client, {"a": double}, fleet={"embedder": by, **endpoint})


def carry_out(night: SmallNight, *texts: str) -> list[PlanRow]:
    rows = [night.stored(ItemKind.EMBEDDING, text, tenant="acme") for text in texts]
    night.publish_plan()
    night.publish_epochs()
    night.warm()
    night.probe()
    night.publish()
    return rows


def read(night: SmallNight, row: PlanRow, by: EmbedderIdentity) -> Hit[EmbeddingValue] | Miss:
    prompt = night.payloads[row.payload_sha256 or ""].prompt_sha256
    return ReaderClient(night.redis).embedding(row.tenant, by, prompt)


def test_vectors_carry_meaning_and_one_text_that_is_too_long_costs_nobody_else(
    tmp_path: Path, redis_client: redis.Redis, double: DoubleProcess, embedder: VllmServer
) -> None:
    by = embedding_model_identity()
    night = night_with(tmp_path, redis_client, double, by, embedder.url)
    rows = carry_out(night, *QUESTIONS, "word " * 600)
    outcomes = {key: (receipt.outcome, receipt.reason) for key, receipt in night.receipts().items()}
    assert [outcomes[key(row)][0] for row in rows] == [Outcome.WARMED] * 3 + [Outcome.REJECTED]
    found = [read(night, row, by) for row in rows[:3]]
    assert all(isinstance(hit, Hit) for hit in found)
    one, same, other = (hit.value.array() for hit in found if isinstance(hit, Hit))
    assert np.linalg.norm(one) == pytest.approx(1.0, abs=1e-4)
    assert one @ same > 0.5 > one @ other
    assert isinstance(read(night, rows[3], by), Miss)


def test_after_a_swap_to_an_embedder_of_the_same_dimension_all_is_a_miss(
    tmp_path: Path, redis_client: redis.Redis, double: DoubleProcess, embedder: VllmServer
) -> None:
    before, after = default_embedder_identity(), embedding_model_identity()
    assert before.dimensions == after.dimensions
    old = night_with(tmp_path / "old", redis_client, double, before, None)
    rows = carry_out(old, *QUESTIONS)
    assert all(isinstance(read(old, row, before), Hit) for row in rows)
    assert all(isinstance(read(old, row, after), Miss) for row in rows)
    new = night_with(tmp_path / "new", redis_client, double, after, embedder.url)
    renewed = carry_out(new, QUESTIONS[0])
    assert {row.item_id for row in renewed}.isdisjoint(row.item_id for row in rows)
    assert isinstance(read(new, renewed[0], after), Hit)
    assert isinstance(read(old, rows[1], after), Miss)


def test_a_dimension_that_the_model_does_not_have_writes_nothing(
    tmp_path: Path, redis_client: redis.Redis, double: DoubleProcess, embedder: VllmServer
) -> None:
    wrong = embedding_model_identity().model_copy(update={"dimensions": 768})
    night = night_with(tmp_path, redis_client, double, wrong, embedder.url)
    rows = carry_out(night, *QUESTIONS)
    outcomes = {key: (receipt.outcome, receipt.reason) for key, receipt in night.receipts().items()}
    assert {outcomes[key(row)] for row in rows} == {(Outcome.REJECTED, Reason.DIMENSION_MISMATCH)}
    assert list(redis_client.scan_iter("*emb:*")) == []
