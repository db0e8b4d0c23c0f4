"""A fleet after its night, with items of every kind, adapter, tenant and replica, and what a reader is given of each.

Used twice, on the double and on the real engine: the same events must void the same items.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import redis as redis_client

from tests.support.small_night import MODEL, SmallNight, now
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.identity import EmbedderIdentity, IdentityField, digest
from warmup_tasks.items import KINDS, EvidenceKind, GainBasis, ItemKind, Mark, PlanRow, Residency, item_id
from warmup_tasks.lake.records import key_of
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.reader import Hit, ReaderClient
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import EmbeddingValue, ResponseValue

PREFIX_BLOCKS = 96  # of 16 tokens: whole blocks for engines with 32 as well, and long enough for warm to be faster
LIMIT_S = 15.0
OTHER_EMBEDDER = EmbedderIdentity(embedder="other", revision="1", dimensions=4, lexicon_version="2")

ADAPTER_A = {"adapter a on r0", "adapter a on r1", "prefix a", "answer a"}
ON_R0 = {"adapter a on r0", "adapter b on r0", "prefix base", "second prefix", "prefix a", "prefix b",
         "prefix acme"}  # fmt: skip
ON_R1 = {"adapter a on r1", "prefix on r1", "green prefix on r1"}
OF_EMBEDDER = {"embedding", "embedding acme", "answer base", "answer a", "answer acme", "pair"}
OF_OTHER_EMBEDDER = {"other embedding", "answer by other embedding"}
GREEN = {"green answer", "green prefix on r1"}
OF_BLUE = (ON_R0 | ON_R1 | {"answer base", "answer a", "answer acme", "pair", "answer by other embedding"}) - GREEN
EVERYTHING = ON_R0 | ON_R1 | OF_EMBEDDER | OF_OTHER_EMBEDDER | GREEN


class Matrix:
    """The items by name, and the events that befall them.

    Args:
        folder: for the lake.
        redis: the serving store.
        urls: of ``r0`` and ``r1``.
        adapters: paths of ``adapter-a`` and ``adapter-b``.
    """

    def __init__(
        self, folder: Path, redis: redis_client.Redis, urls: Mapping[str, str], adapters: Mapping[str, Path]
    ) -> None:
        specs = [
            AdapterSpec(name=name, version="1", path=str(path), base_model=MODEL) for name, path in adapters.items()
        ]
        policy = {"request_deadline_s": 60, "twins_per_stratum": 1, "max_failure_share": 0.9}
        self.redis = redis
        self.night = SmallNight(folder, redis, urls, adapters=specs, policy=policy)
        self.rows: dict[str, PlanRow] = {}
        self.placed: dict[str, MarkAddress] = {}
        self._reader = ReaderClient(redis)
        self._plan()

    def prepare(self) -> None:
        """Carry the night out, then place what other runs of other identities left."""
        summary = self.night.whole()
        reasons = {name: self.night.quarantine().get(key_of(row)) for name, row in self.rows.items()}
        assert summary["ready"] == len(self.rows), {name: why for name, why in reasons.items() if why}
        self._place_others()
        assert self.held() == EVERYTHING

    def held(self) -> set[str]:
        """Names of the items that a reader is given, or told to be ready, at this moment."""
        return {name for name, address in self.addresses().items() if self._is_given(name, address)}

    def addresses(self) -> dict[str, MarkAddress]:
        planned = {
            name: MarkAddress(row.tenant, row.identity_digest, row.item_id, row.replica)
            for name, row in self.rows.items()
        }
        return planned | self.placed

    def keep(self) -> dict[bytes, tuple[int, bytes]]:
        """What stands in Redis, epochs and the agent's memory left aside."""
        keys = [key for key in self.redis.scan_iter("wt1:*") if key.split(b":")[1] not in _OF_AGENT]
        return {key: (max(self.redis.pttl(key), 0), self.redis.dump(key)) for key in keys}

    def restore(self, kept: Mapping[bytes, tuple[int, bytes]]) -> None:
        """Put back what stood in Redis."""
        gone = [key for key in self.redis.scan_iter("wt1:*") if key.split(b":")[1] not in _OF_AGENT]
        if gone:
            self.redis.delete(*gone)
        for key, (ttl_ms, value) in kept.items():
            self.redis.restore(key, ttl_ms, value)

    def mark_again(self) -> None:
        """Vouch for the same items in the replicas' present epochs."""
        until(lambda: None not in EpochStore(self.redis).read_many(["r0", "r1"]), LIMIT_S)
        epochs = {record.replica: record.epoch for record in EpochStore(self.redis).read_many(["r0", "r1"]) if record}
        marks = [
            mark.model_copy(update={"epoch": epochs[mark.replica]})
            for mark in MarkStore(self.redis).find(Reach(model=MODEL))
            if mark.replica is not None
        ]
        MarkStore(self.redis).put_many(marks, now())

    @contextmanager
    def watched(self) -> Iterator["Watch"]:
        """Poll every item all the time, as a gateway would."""
        watch = Watch(self.held)
        with watch:
            yield watch

    def _is_given(self, name: str, address: MarkAddress) -> bool:
        row = self.rows.get(name)
        tenant, digest_ = address.tenant, address.identity_digest
        if row is None or row.replica is not None or row.payload_sha256 is None:
            return self._reader.is_item_ready(tenant, digest_, address.item_id, address.replica).is_ready
        payload = self.night.payloads[row.payload_sha256]
        if row.kind is ItemKind.EMBEDDING:
            return isinstance(self._reader.embedding(tenant, self.night.fleet.embedder, payload.prompt_sha256), Hit)
        identity = self.night.fleet.identity(row.model, row.adapter)
        if row.kind is ItemKind.QA_PAIR:
            return isinstance(self._reader.qa(tenant, identity, payload.intent_hash or ""), Hit)
        return isinstance(self._reader.response(tenant, identity, payload.prompt_sha256), Hit)

    def _plan(self) -> None:
        night, rows = self.night, self.rows
        rows["embedding"] = night.stored(ItemKind.EMBEDDING, "When do you open?")
        rows["embedding acme"] = night.stored(ItemKind.EMBEDDING, "When do you open?", tenant="acme")
        source, source_acme = [rows["embedding"].item_id], [rows["embedding acme"].item_id]
        rows["adapter a on r0"] = night.adapter("r0", "adapter-a", depends_on=source)
        rows["adapter a on r1"] = night.adapter("r1", "adapter-a", depends_on=source)
        rows["adapter b on r0"] = night.adapter("r0", "adapter-b")
        a, b = [rows["adapter a on r0"].item_id], [rows["adapter b on r0"].item_id]
        rows["answer base"] = night.stored(ItemKind.RESPONSE, "When do you open?", depends_on=source)
        rows["answer a"] = night.stored(
            ItemKind.RESPONSE, "When do you open?", adapter="adapter-a", depends_on=[*source, *a]
        )
        rows["answer acme"] = night.stored(
            ItemKind.RESPONSE, "When do you open?", tenant="acme", depends_on=source_acme
        )
        rows["pair"] = night.stored(ItemKind.QA_PAIR, "Opening hours?", depends_on=source)
        rows["prefix base"] = night.prefix("r0", _tokens(1), 3)
        rows["second prefix"] = night.prefix("r0", _tokens(6), 4)
        rows["prefix a"] = night.prefix("r0", _tokens(2), 2, adapter="adapter-a", depends_on=a)
        rows["prefix b"] = night.prefix("r0", _tokens(3), 1, adapter="adapter-b", depends_on=b)
        rows["prefix acme"] = night.prefix("r0", _tokens(4), 0, tenant="acme", cache_salt="of-acme")
        rows["prefix on r1"] = night.prefix("r1", _tokens(5), 0)

    def _place_others(self) -> None:
        """A second revision of the same model name, and answers that rest on another embedder, as other runs leave."""
        blue = self.night.fleet.identity(MODEL)
        green = blue.model_copy(update={"weights_revision": IdentityField(declared="r2")})
        sha = digest({"prompt": "green"})
        common: dict[str, Any] = {"created_at": now(), "model": MODEL, "adapter": None, "tenant": None}
        answers = {
            "green answer": ResponseValue(
                item_id="6" * 32, identity_digest=green.digest(), prompt_sha256=sha, text="green", **common
            ),
            "answer by other embedding": ResponseValue(
                item_id="7" * 32, identity_digest=blue.digest(), prompt_sha256=sha, text="blue", **common
            ),
        }
        embedding = EmbeddingValue.of(
            [0.5] * 4, OTHER_EMBEDDER, tenant=None, prompt_sha256=sha, created_at=now(),
            item_id=item_id(ItemKind.EMBEDDING, None, None, OTHER_EMBEDDER.digest(), sha),
        )  # fmt: skip
        IdentityBook(self.redis).remember([green, OTHER_EMBEDDER])
        ValueStore(self.redis).put_many([*answers.values(), embedding], now())
        epoch = EpochStore(self.redis).read("r1")
        marks = {
            "green answer": _mark(ItemKind.RESPONSE, "6" * 32, green.digest(), value_key=answers["green answer"].key,
                                  embedder_digest=self.night.fleet.embedder.digest()[::-1]),
            "answer by other embedding": _mark(
                ItemKind.RESPONSE, "7" * 32, blue.digest(), value_key=answers["answer by other embedding"].key,
                embedder_digest=OTHER_EMBEDDER.digest(),
            ),
            "other embedding": _mark(
                ItemKind.EMBEDDING, embedding.item_id, OTHER_EMBEDDER.digest(), value_key=embedding.key
            ),
            "green prefix on r1": _mark(
                ItemKind.KV_PREFIX, "8" * 32, green.digest(), replica="r1", epoch=epoch.epoch if epoch else "?"
            ),
        }  # fmt: skip
        # What the green answer rests on is an embedder of its own, which is remembered like any other.
        own = OTHER_EMBEDDER.model_copy(update={"embedder": "green", "lexicon_version": "3"})
        IdentityBook(self.redis).remember([own])
        marks["green answer"] = marks["green answer"].model_copy(update={"embedder_digest": own.digest()})
        MarkStore(self.redis).put_many(list(marks.values()), now())
        self.placed = {name: MarkAddress.of(mark) for name, mark in marks.items()}


_OF_AGENT = (b"epoch", b"observation", b"generation")


class Watch:
    """A reader in a thread of its own: every look with its time."""

    def __init__(self, held: Callable[[], set[str]]) -> None:
        self._held = held
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks: list[tuple[float, float, set[str]]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self.looks.append((began, time.monotonic(), self._held()))

    def looked_after(self, moment: float) -> bool:
        """Whether a whole look began after a moment and is done."""
        return any(began > moment for began, _, _ in self.looks)

    def given_after(self, moment: float) -> set[str]:
        """Names that were given in looks that began after a moment."""
        return set().union(*(held for began, _, held in self.looks if began > moment))

    def always_given(self) -> set[str]:
        """Names that were given in every look."""
        first, *others = (held for _, _, held in self.looks)
        return first.intersection(*others)


def until(condition: Callable[[], bool], deadline_s: float) -> None:
    """Wait for a condition."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s"
        time.sleep(0.02)


def _tokens(seed: int) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(300, 4000) for _ in range(PREFIX_BLOCKS * 16 + 1)]


def _mark(kind: ItemKind, name: str, identity_digest: str, **more: Any) -> Mark:
    moment = now()
    values = {
        "item_id": name, "kind": kind, "tenant": None, "replica": None, "model": MODEL, "adapter": None,
        "identity_digest": identity_digest, "epoch": None, "run_id": "another", "as_of": moment, "marked_at": moment,
        "expires_at": moment + timedelta(seconds=KINDS[kind].ttl_s or 3600), "residency": Residency.HIT,
        "evidence_kind": EvidenceKind.STORED_VALUE, "gain_basis": GainBasis.NONE,
    }  # fmt: skip
    return Mark(**{**values, **more})
