"""Warming against the real double over HTTP and a real Redis: what each kind does, and what a failure takes with it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
import redis

from tests.support.small_night import MODEL, SmallNight, key, now, write_adapter
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.errors import ConfigurationError, RetryLaterError
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.identity import EmbedderIdentity, embedding_key, qa_key, response_key
from warmup_tasks.items import ItemKind, Outcome, PlanRow, Reason, Residency
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.reader import Hit, Miss, ReaderClient
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import EmbeddingValue, QaValue, ResponseValue
from warmup_tasks.warming.work import Attempt, in_order


@pytest.fixture(scope="module")
def double() -> Iterator[DoubleProcess]:
    with start_double(developer_mode=True, num_gpu_blocks=101, max_model_len=1024, time_scale=0.02) as process:
        yield process


@pytest.fixture
def night(double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis) -> Iterator[SmallNight]:
    folder = write_adapter(tmp_path / "support-v1")
    specs = [
        AdapterSpec(name="support", version="1", path=str(folder), base_model=MODEL),
        AdapterSpec(name="broken", version="1", path=str(tmp_path / "nowhere"), base_model=MODEL),
    ]
    made = SmallNight(tmp_path, redis_client, {"a": double}, adapters=specs)
    made.control("a", "/double/restart")
    yield made
    made.control("a", "/double/faults", "DELETE")


def outcomes(night: SmallNight) -> dict[tuple[str, str | None], tuple[str, str]]:
    return {where: (receipt.outcome, receipt.reason) for where, receipt in night.receipts().items()}


def respecified(night: SmallNight, **changes: str) -> SmallNight:
    """The same night with another declaration of the adapter ``support``."""
    spec = night.fleet.adapters[0].model_copy(update=changes)
    night.fleet = night.fleet.model_copy(update={"adapters": [spec]})
    return night


def test_the_hottest_are_warmed_last_and_stay(night: SmallNight) -> None:
    one_by_one = night.run.parameters.model_copy(update={"concurrency": 1})
    night.run = night.run.model_copy(update={"parameters": one_by_one})
    rows = [night.prefix("a", night.tokens(seed, 20), order=seed) for seed in range(10)]
    night.publish_plan()
    night.publish_epochs()
    night.warm()
    night.probe()

    hits = [row.order for row in rows if night.evidence()[key(row)].residency is Residency.HIT]
    assert hits
    assert hits == list(range(10 - len(hits), 10)), "the hottest of them, and only those"


def test_an_item_that_the_engine_refuses_rejects_itself_only(night: SmallNight) -> None:
    good = night.prefix("a", night.tokens(1, 4), order=1)
    too_long = night.prefix("a", night.tokens(2, 80), order=2)
    night.publish_plan()
    epochs = night.publish_epochs()

    night.warm()

    assert outcomes(night)[key(good)] == (Outcome.WARMED, "")
    assert outcomes(night)[key(too_long)] == (Outcome.REJECTED, Reason.TOO_LONG)
    receipt = night.receipts()[key(good)]
    assert (receipt.replica_epoch, receipt.prompt_tokens, receipt.computed_tokens) == (epochs["a"], 65, 65)


def test_a_refusal_for_the_moment_is_tried_again(night: SmallNight) -> None:
    row = night.prefix("a", night.tokens(1, 4), order=1)
    night.publish_plan()
    night.publish_epochs()
    night.control("a", "/double/faults", refuse={"share": 1.0, "limit": 2})

    night.warm()

    assert outcomes(night)[key(row)] == (Outcome.WARMED, "")


def test_what_stays_refused_fails_alone(night: SmallNight) -> None:
    row = night.prefix("a", night.tokens(1, 4), order=1)
    night.publish_plan()
    night.publish_epochs()
    night.control("a", "/double/faults", fail={"share": 1.0})

    night.warm()

    assert outcomes(night)[key(row)] == (Outcome.FAILED, Reason.ENGINE_UNAVAILABLE)


def test_a_replica_that_does_not_answer_stops_the_shard(tmp_path: Path, redis_client: redis.Redis) -> None:
    night = SmallNight(tmp_path, redis_client, {"a": "http://127.0.0.1:9"})
    night.prefix("a", night.tokens(1, 4), order=1)
    night.publish_plan()

    with pytest.raises(RetryLaterError):
        night.warm()

    assert night.receipts() == {}


def test_an_unknown_epoch_warms_and_says_so(night: SmallNight) -> None:
    row = night.prefix("a", night.tokens(1, 4), order=1)
    night.publish_plan()

    night.warm()

    receipt = night.receipts()[key(row)]
    assert (receipt.outcome, receipt.reason, receipt.replica_epoch) == (Outcome.WARMED, Reason.EPOCH_UNKNOWN, None)


def test_warming_twice_computes_nothing_the_second_time(night: SmallNight) -> None:
    row = night.prefix("a", night.tokens(1, 4), order=1)
    night.publish_plan()
    night.publish_epochs()
    night.warm()
    first = night.receipts()[key(row)]

    night.warm()

    second = night.receipts()[key(row)]
    assert (first.outcome, second.outcome) == (Outcome.WARMED, Outcome.WARMED)
    assert second.computed_tokens == 1, "the token after the last whole block"


def test_a_shard_without_rows_is_an_empty_table(night: SmallNight) -> None:
    night.publish_plan()

    (summary,) = night.warm("large.w0.01")

    assert summary["items"] == 0
    assert night.lake.latest("receipts", f"{night.run.run_id}.large.w0.01")


class TestAdapters:
    def test_a_failed_adapter_takes_its_prefixes_with_it_and_nothing_else(self, night: SmallNight) -> None:
        bad, good = night.adapter("a", "broken"), night.adapter("a", "support")
        tokens = night.tokens(1, 4)
        lost = night.prefix("a", tokens, order=1, adapter="broken", depends_on=[bad.item_id])
        kept = night.prefix("a", tokens, order=2, adapter="support", depends_on=[good.item_id])
        base = night.prefix("a", tokens, order=3)
        night.publish_plan()
        night.publish_epochs()

        night.warm()

        found = outcomes(night)
        assert found[key(bad)] == (Outcome.REJECTED, Reason.ENGINE_REFUSED)
        assert found[key(lost)] == (Outcome.SKIPPED, Reason.DEPENDENCY_FAILED)
        assert [found[key(row)] for row in (good, kept, base)] == [(Outcome.WARMED, "")] * 3

    def test_already_loaded_is_success_under_the_same_path(self, night: SmallNight) -> None:
        row = night.adapter("a", "support")
        night.publish_plan()
        night.publish_epochs()
        night.warm()

        night.warm()

        assert outcomes(night)[key(row)] == (Outcome.WARMED, "")

    def test_already_loaded_from_another_path_is_refused(self, night: SmallNight, tmp_path: Path) -> None:
        other = write_adapter(tmp_path / "elsewhere")
        night.control_text("a", "/v1/load_lora_adapter", lora_name="support", lora_path=str(other))
        row = night.adapter("a", "support")
        night.publish_plan()

        night.warm()

        assert outcomes(night)[key(row)] == (Outcome.REJECTED, Reason.ADAPTER_PATH_DIFFERS)

    def test_updates_that_are_switched_off_are_named(self, night: SmallNight) -> None:
        night.control("a", "/double/faults", runtime_adapters_off=True)
        row = night.adapter("a", "support")
        night.publish_plan()

        night.warm()

        assert outcomes(night)[key(row)] == (Outcome.REJECTED, Reason.ADAPTER_UPDATES_OFF)

    def test_a_restart_between_the_waves_loads_the_adapter_again(self, night: SmallNight) -> None:
        adapter = night.adapter("a", "support")
        prefix = night.prefix("a", night.tokens(1, 4), order=1, adapter="support", depends_on=[adapter.item_id])
        night.publish_plan()
        night.publish_epochs()
        night.warm(adapter.shard)
        night.control("a", "/double/restart")
        epochs = night.publish_epochs()

        night.warm(prefix.shard)

        receipt = night.receipts()[key(prefix)]
        assert (receipt.outcome, receipt.replica_epoch) == (Outcome.WARMED, epochs["a"])

    def test_an_adapter_that_somebody_took_away_stays_away(self, night: SmallNight) -> None:
        adapter = night.adapter("a", "support")
        prefix = night.prefix("a", night.tokens(1, 4), order=1, adapter="support", depends_on=[adapter.item_id])
        base = night.prefix("a", night.tokens(1, 4), order=2)
        night.publish_plan()
        night.publish_epochs()
        night.warm(adapter.shard)
        night.control_text("a", "/v1/unload_lora_adapter", lora_name="support")

        night.warm(prefix.shard)

        assert outcomes(night)[key(prefix)] == (Outcome.SKIPPED, Reason.DEPENDENCY_FAILED)
        assert outcomes(night)[key(base)] == (Outcome.WARMED, "")

    def test_new_weights_under_the_old_path_empty_the_cache_first(self, night: SmallNight) -> None:
        first = self._stale(night)
        stop = Event()
        agent = Thread(target=self._speak_for_the_agent, args=(night, stop))
        agent.start()
        night.warm(first.shard)
        stop.set()
        agent.join()

        prefix = next(row for row in night.rows if row.kind is ItemKind.KV_PREFIX)
        night.warm(prefix.shard)

        assert outcomes(night)[key(first)] == (Outcome.WARMED, "")
        assert night.receipts()[key(prefix)].computed_tokens == 65, "none of the old weights' blocks was left"

    def test_without_a_reset_new_weights_under_the_old_path_are_refused(self, night: SmallNight) -> None:
        night.control("a", "/double/faults", endpoint_status={"/reset_prefix_cache": 404})
        first = self._stale(night)

        night.warm(first.shard)

        assert outcomes(night)[key(first)] == (Outcome.REJECTED, Reason.ADAPTER_STALE_PATH)

    def test_another_declared_version_under_the_old_path_is_stale_too(self, night: SmallNight) -> None:
        night.control("a", "/double/faults", endpoint_status={"/reset_prefix_cache": 404})
        row = night.adapter("a", "support")
        night.publish_plan()
        night.publish_epochs()
        night.warm()
        respecified(night, version="2")

        night.warm()

        assert outcomes(night)[key(row)] == (Outcome.REJECTED, Reason.ADAPTER_STALE_PATH)

    def test_a_restart_makes_an_overwritten_path_harmless(self, night: SmallNight) -> None:
        night.control("a", "/double/faults", endpoint_status={"/reset_prefix_cache": 404})
        first = self._stale(night)
        night.control("a", "/double/restart")
        night.publish_epochs()

        night.warm(first.shard)

        assert outcomes(night)[key(first)] == (Outcome.WARMED, "")

    def _stale(self, night: SmallNight) -> PlanRow:
        """Warm adapter and prefix, then overwrite the weights under the same path."""
        adapter = night.adapter("a", "support")
        night.prefix("a", night.tokens(1, 4), order=1, adapter="support", depends_on=[adapter.item_id])
        night.publish_plan()
        night.publish_epochs()
        night.warm()
        write_adapter(Path(night.fleet.adapters[0].path), b"two")
        return adapter

    def _speak_for_the_agent(self, night: SmallNight, stop: Event) -> None:
        while not stop.wait(0.05):
            night.publish_epochs()


class TestStoredValues:
    def test_embeddings_are_written_without_a_mark(self, night: SmallNight) -> None:
        row = night.stored(ItemKind.EMBEDDING, "How do I reset my password?", tenant="acme")
        night.publish_plan()

        night.warm()

        prompt = night.payloads[row.payload_sha256 or ""].prompt_sha256
        value = ValueStore(night.redis).get(embedding_key("acme", night.fleet.embedder, prompt))
        assert isinstance(value, EmbeddingValue)
        assert value.array().shape == (384,)
        assert outcomes(night) == {key(row): (Outcome.WARMED, "")}
        address = MarkAddress(row.tenant, row.identity_digest, row.item_id, None)
        assert MarkStore(night.redis).get(address) is None
        assert isinstance(ReaderClient(night.redis).embedding("acme", night.fleet.embedder, prompt), Miss)

    def test_a_vector_of_the_wrong_dimension_is_refused_and_not_written(
        self, double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis
    ) -> None:
        spec = EmbedderIdentity(embedder=MODEL, revision="1", dimensions=128)
        night = SmallNight(tmp_path, redis_client, {"a": double}, fleet={"embedder": spec})
        row = night.stored(ItemKind.EMBEDDING, "hello")
        night.publish_plan()

        night.warm()

        assert outcomes(night) == {key(row): (Outcome.REJECTED, Reason.DIMENSION_MISMATCH)}
        assert list(redis_client.scan_iter("*emb:*")) == []

    def test_an_embedder_with_an_address_of_its_own_is_asked_there(
        self, double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis
    ) -> None:
        spec = EmbedderIdentity(embedder="small-embedder", revision="1", dimensions=64)
        with start_double(model="small-embedder", embedding_dimensions=64, time_scale=0.0) as embedder:
            fleet = {"embedder": spec, "embedder_endpoint": {"url": f"{embedder.url}/v1/"}}
            night = SmallNight(tmp_path, redis_client, {"a": double}, fleet=fleet)
            row = night.stored(ItemKind.EMBEDDING, "hello")
            night.publish_plan()
            night.warm()

        prompt = night.payloads[row.payload_sha256 or ""].prompt_sha256
        value = ValueStore(redis_client).get(embedding_key(None, spec, prompt))
        assert isinstance(value, EmbeddingValue)
        assert value.array().shape == (64,)
        assert outcomes(night) == {key(row): (Outcome.WARMED, "")}

    def test_a_text_that_the_embedder_refuses_costs_the_others_nothing(
        self, tmp_path: Path, redis_client: redis.Redis
    ) -> None:
        spec = EmbedderIdentity(embedder=MODEL, revision="1", dimensions=384)
        with start_double(model=MODEL, max_model_len=128, time_scale=0.0) as small:
            night = SmallNight(tmp_path, redis_client, {"a": small}, fleet={"embedder": spec})
            rows = [night.stored(ItemKind.EMBEDDING, text) for text in ("hello", "word " * 400, "good evening")]
            night.publish_plan()
            night.warm()

        found = outcomes(night)
        assert [found[key(row)][0] for row in rows] == [Outcome.WARMED, Outcome.REJECTED, Outcome.WARMED]

    def test_an_embedder_that_nobody_offers_is_named(
        self, double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis
    ) -> None:
        spec = EmbedderIdentity(embedder="minilm", revision="1", dimensions=384)
        night = SmallNight(tmp_path, redis_client, {"a": double}, fleet={"embedder": spec})
        night.stored(ItemKind.EMBEDDING, "hello")
        night.publish_plan()

        with pytest.raises(ConfigurationError, match="minilm"):
            night.warm()

    def test_responses_are_the_models_answer_and_readable_once_published(self, night: SmallNight) -> None:
        row = night.stored(ItemKind.RESPONSE, "What is the answer?", tenant="acme")
        night.publish_plan()
        night.publish_epochs()
        night.warm()
        prompt = night.payloads[row.payload_sha256 or ""].prompt_sha256
        identity = night.fleet.identity(MODEL)
        reader = ReaderClient(night.redis)
        value = ValueStore(night.redis).get(response_key("acme", identity, prompt))
        before = reader.response("acme", identity, prompt)

        night.probe()
        summary = night.publish()

        assert isinstance(value, ResponseValue)
        assert value.text
        assert isinstance(before, Miss)
        assert summary["ready"] == 1
        assert isinstance(reader.response("acme", identity, prompt), Hit)

    def test_two_tenants_with_one_question_have_two_values(self, night: SmallNight) -> None:
        rows = [
            night.stored(ItemKind.RESPONSE, "What is my account balance?", tenant=tenant) for tenant in ("acme", "beta")
        ]
        night.publish_plan()

        night.warm()

        prompt = night.payloads[rows[0].payload_sha256 or ""].prompt_sha256
        keys = [response_key(row.tenant, row.identity_digest, prompt) for row in rows]
        assert ValueStore(night.redis).existing(keys) == set(keys)
        assert len(set(keys)) == 2

    def test_an_adopted_correction_replaces_the_generated_answer(self, night: SmallNight) -> None:
        row = night.stored(ItemKind.QA_PAIR, "Where is the office?", answer_text="In Bern, since May.")
        night.control("a", "/double/faults", fail={"share": 1.0})
        night.publish_plan()

        night.warm()

        intent = night.payloads[row.payload_sha256 or ""].intent_hash or ""
        value = ValueStore(night.redis).get(qa_key(None, row.identity_digest, intent))
        assert isinstance(value, QaValue)
        assert (value.question, value.answer) == ("Where is the office?", "In Bern, since May.")

    def test_a_pair_takes_the_answer_that_the_run_already_paid_for(self, night: SmallNight) -> None:
        response = night.stored(ItemKind.RESPONSE, "Where is the office?")
        pair = night.stored(ItemKind.QA_PAIR, "Where is the office?")
        night.publish_plan()

        night.warm()

        found = night.receipts()
        assert (found[key(response)].computed_tokens or 0) > 0
        assert (found[key(pair)].outcome, found[key(pair)].ttft_ms) == (Outcome.WARMED, None)

    def test_a_response_of_an_adapter_asks_where_the_adapter_is(self, night: SmallNight) -> None:
        adapter = night.adapter("a", "support")
        row = night.stored(ItemKind.RESPONSE, "Hello?", adapter="support", depends_on=[adapter.item_id])
        night.publish_plan()
        night.publish_epochs()

        night.warm()

        assert outcomes(night)[key(row)] == (Outcome.WARMED, "")

    def test_a_replica_that_is_down_is_no_reason_while_another_answers(
        self, double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis
    ) -> None:
        night = SmallNight(tmp_path, redis_client, {"a": double, "b": "http://127.0.0.1:9"})
        rows = [night.stored(ItemKind.RESPONSE, f"Question {n}?") for n in range(4)]
        night.publish_plan()

        night.warm()

        assert [outcomes(night)[key(row)] for row in rows] == [(Outcome.WARMED, "")] * 4

    def test_an_adapter_falls_only_when_all_of_its_clusters_did(self, night: SmallNight) -> None:
        clusters = [night.stored(ItemKind.EMBEDDING, text, shard=f"large.w0.0{n}") for n, text in enumerate("pq")]
        adapter = night.adapter("a", "support", depends_on=[row.item_id for row in clusters])
        night.publish_plan()
        night.publish_epochs()

        night.warm(adapter.shard)
        without = outcomes(night)[key(adapter)]
        night.warm("large.w0.00", adapter.shard)
        with_one = outcomes(night)[key(adapter)]

        assert without == (Outcome.SKIPPED, Reason.DEPENDENCY_FAILED)
        assert with_one == (Outcome.WARMED, "")


async def test_adapters_are_never_under_way_together(night: SmallNight) -> None:
    names = [None, None, "support", None, "support", "support"]
    rows = [night.prefix("a", night.tokens(n, 2), order=n, adapter=name) for n, name in enumerate(names)]
    under_way: list[str | None] = []
    seen: list[set[str | None]] = []
    started: list[int] = []

    async def do(row: PlanRow) -> Attempt:
        under_way.append(row.adapter)
        started.append(row.order)
        await asyncio.sleep(0)
        seen.append(set(under_way))
        under_way.remove(row.adapter)
        return Attempt(Outcome.WARMED, now(), now())

    attempts = await in_order(rows, 4, do)

    assert list(attempts) == [key(row) for row in rows]
    assert started == sorted(started)
    assert all(len(adapters) == 1 for adapters in seen)


def test_receipts_tell_times_of_the_injected_clock(night: SmallNight) -> None:
    row = night.prefix("a", night.tokens(1, 4), order=1)
    night.publish_plan()
    before = now()

    night.warm()

    receipt = night.receipts()[key(row)]
    assert before <= receipt.started_at <= receipt.finished_at <= now()
