"""A night under a drawn schedule of faults, and what is true afterwards: the double is asked what lies in its cache.

A schedule follows from its seed alone: the plan, the faults that hold all night, and what happens to a replica just
before its n-th generation of a stage. The truth comes from an endpoint that no engine has and no probe can replace.
"""

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import redis as redis_client

from tests.support.small_night import BLOCK, MODEL, SmallNight, write_adapter
from warmup_tasks.engines.base import Engine, Generation, GenerationRequest
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import DoubleProcess
from warmup_tasks.errors import WarmupError
from warmup_tasks.fleet_file import AdapterSpec, ReplicaSpec
from warmup_tasks.items import ItemKind, PlanRow
from warmup_tasks.serving.reader import ReaderClient

CAPACITY_BLOCKS = 96
DOUBLE = {
    "developer_mode": True,
    "time_scale": 0,
    "num_gpu_blocks": CAPACITY_BLOCKS + 1,
    "max_model_len": CAPACITY_BLOCKS * BLOCK // 2,
    "max_num_batched_tokens": 256,
}
STAGES = ("twins", "warm", "probe")
ADAPTER = "summaries"
_EVENTS = ("restart", "weights", "evict", "reload", "unload")
_DEADLINE_S = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a replica just before its ``nth`` generation of a stage (0: before the stage begins)."""

    stage: str
    nth: int
    replica: str
    what: str
    size: int


@dataclass(frozen=True, slots=True)
class WrongMark:
    """An item that a reader takes for ready, and what the replica really holds of it."""

    item_id: str
    replica: str
    expected_blocks: int
    found_blocks: int
    right_blocks: int


def run_side_by_side(schedules: Sequence["FaultSchedule"]) -> list[WrongMark]:
    """Run nights in step, as those of several registries on one serving store, and return all wrong marks."""
    for schedule in schedules:
        schedule.begin()
    for stage in STAGES:
        for schedule in schedules:
            schedule.run_stage(stage)
    for schedule in schedules:
        schedule.publish()
    for schedule in schedules:
        schedule.night.publish_epochs()
    return [wrong for schedule in schedules for wrong in schedule.wrong_marks()]


class FaultSchedule:
    """One drawn night on two replicas.

    Args:
        seed: everything follows from it.
        folder: for lake and adapter.
        redis: the serving store.
        doubles: replica → double, started with :data:`DOUBLE`.
        revision: of the weights that this registry declares, and that its replicas begin with.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        redis: redis_client.Redis,
        doubles: dict[str, DoubleProcess | str],
        revision: str = "r1",
    ) -> None:
        self._draw = random.Random(seed)
        self._revision = revision
        self._weights = write_adapter(folder / "adapter", b"as trained")
        self._spec = AdapterSpec(name=ADAPTER, version="1", path=str(self._weights), base_model=MODEL)
        self.night = SmallNight(
            folder,
            redis,
            doubles,
            adapters=[self._spec],
            model={"weights_revision": revision},
            policy={
                "request_deadline_s": _DEADLINE_S,
                "max_failure_share": self._draw.choice([0.2, 0.9, 0.9]),
                "twins_per_stratum": self._draw.choice([1, 2, 20]),
            },
            parameters={"concurrency": self._draw.choice([1, 3, 8])},
        )
        self.faults = {name: self._faults() for name in doubles}
        self.events = self._draw_events(list(doubles))
        for name in doubles:
            self._plan(name)
        self._stage = ""
        self._generations: Counter[tuple[str, str]] = Counter()
        self.struck: list[Event] = []

    def run(self) -> list[WrongMark]:
        """Run the night and return the marks that hold although they are not true; none is right."""
        return run_side_by_side([self])

    def begin(self) -> None:
        """Start replicas, faults and plan."""
        for name in self.night.urls:
            self.night.control(name, "/double/faults", "DELETE")
            self.night.control(name, "/double/weights", revision=self._revision)
            self.night.control(name, "/double/restart")
            if self.faults[name]:
                self.night.control(name, "/double/faults", **self.faults[name])
        self.night.publish_plan()
        self.night.publish_epochs()

    def publish(self) -> None:
        """End the night."""
        self._agent_looks()
        self.night.publish()
        self.night.publish_epochs()

    def wrong_marks(self) -> list[WrongMark]:
        """Return the prefixes that a reader takes for ready and that their replica does not hold, or holds wrong."""
        return [wrong for row in self.ready_rows() if (wrong := self._wrong(row)) is not None]

    def ready_rows(self) -> list[PlanRow]:
        """Return the prefixes that a reader takes for ready now."""
        reader = ReaderClient(self.night.redis)
        return [
            row
            for row in self.night.rows
            if row.kind is ItemKind.KV_PREFIX
            and reader.is_item_ready(row.tenant, row.identity_digest, row.item_id, row.replica).is_ready
        ]

    def _wrong(self, row: PlanRow) -> WrongMark | None:
        payload = self.night.payloads[row.payload_sha256 or ""]
        expected = payload.expected_cached_tokens // BLOCK
        body = {"model": row.adapter or row.model, "prompt": payload.token_ids, "cache_salt": row.cache_salt}
        answer = self.night.http.post(f"{self.night.urls[row.replica or '']}/double/residency", json=body)
        seen = answer.json() if answer.status_code == 200 else {"found": 0, "right": 0}
        if min(seen["found"], seen["right"]) >= expected:
            return None
        return WrongMark(row.item_id, row.replica or "", expected, seen["found"], seen["right"])

    def run_stage(self, stage: str) -> None:
        """Run one stage, tried again as a task is when it asks for that; the agent looks before it or does not."""
        self._stage, do = stage, getattr(self.night, stage)
        if self._draw.random() < 0.8:
            self._agent_looks()
        for event in self.events:
            if (event.stage, event.nth) == (stage, 0):
                self._strike(event)
        for _ in range(2):
            try:
                self.night.opener = self._open
                do()
            except WarmupError:
                continue
            return

    def _agent_looks(self) -> None:
        self.night.publish_epochs()

    def _faults(self) -> dict[str, Any]:
        draw, faults = self._draw, {}
        if draw.random() < 0.3:
            faults["usage_details"] = draw.choice(["absent", "null", "null_cached_tokens", "no_usage"])
        if draw.random() < 0.2:
            faults["wrong_answers"] = draw.choice(["on_hit", "always"])
        for name in ("refuse", "fail", "break_stream"):
            if draw.random() < 0.35:
                faults[name] = {"share": draw.choice([0.05, 0.3, 0.7]), "limit": draw.choice([1, 5, 40])}
        if draw.random() < 0.15:
            faults["hang"] = {"share": 0.2, "limit": 1}
        if draw.random() < 0.2:
            faults["break_stream_by"] = "disconnect"
        if draw.random() < 0.1:
            faults["ignore_salt"] = True
        if draw.random() < 0.1:
            faults["logprob_drift"] = 0.001
        return faults

    def _draw_events(self, replicas: Sequence[str]) -> list[Event]:
        draw = self._draw
        return [
            Event(
                stage=draw.choice(STAGES),
                nth=draw.randrange(0, 14),
                replica=draw.choice(replicas),
                what=draw.choice(_EVENTS),
                size=draw.choice([CAPACITY_BLOCKS // 4, CAPACITY_BLOCKS - 1, 2 * CAPACITY_BLOCKS]),
            )
            for _ in range(draw.choice([0, 1, 1, 2, 3]))
        ]

    def _plan(self, replica: str) -> None:
        draw, night = self._draw, self.night
        head = night.tokens(draw.randrange(10**6), draw.randint(1, 6))
        adapter = night.adapter(replica, ADAPTER) if draw.random() < 0.5 else None
        room = draw.choice([CAPACITY_BLOCKS // 2, CAPACITY_BLOCKS // 2, 2 * CAPACITY_BLOCKS])
        for order in range(draw.randint(2, 9)):
            blocks = draw.randint(2, 14)
            room -= blocks
            if room < 0:
                break
            after = head if draw.random() < 0.5 else ()
            tokens = night.tokens(draw.randrange(10**6), max(blocks, len(after) // BLOCK + 1), after)
            more: dict[str, Any] = {"cache_salt": "tenant-salt"} if draw.random() < 0.2 else {}
            if adapter is not None and draw.random() < 0.5:
                more |= {"adapter": ADAPTER, "depends_on": [adapter.item_id]}
            night.prefix(replica, tokens, order, **more)

    def _open(self, replica: ReplicaSpec) -> Engine:
        engine = open_engine(replica)
        generate = engine.generate

        async def counted(request: GenerationRequest, *, deadline_s: float) -> Generation:
            self._generations[self._stage, replica.name] += 1
            for event in self.events:
                if (event.stage, event.nth, event.replica) == (
                    self._stage,
                    self._generations[self._stage, replica.name],
                    replica.name,
                ):
                    self._strike(event)
            return await generate(request, deadline_s=deadline_s)

        engine.generate = counted  # type: ignore[method-assign]
        return engine

    def _strike(self, event: Event) -> None:
        """Let the event happen, all at once: nobody else's request runs meanwhile."""
        self.struck.append(event)
        url = self.night.urls[event.replica]
        if event.what == "restart":
            self.night.http.post(f"{url}/double/restart")
        elif event.what == "weights":
            other = "r2" if self._revision == "r1" else "r1"
            self.night.http.post(f"{url}/double/weights", json={"revision": other})
        elif event.what == "unload":
            self.night.http.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": ADAPTER})
        elif event.what == "reload":
            write_adapter(self._weights, b"as retrained")
            body = {"lora_name": ADAPTER, "lora_path": str(self._weights), "load_inplace": True}
            self.night.http.post(f"{url}/v1/load_lora_adapter", json=body)
        else:
            self._background(url, event.size)

    def _background(self, url: str, blocks: int) -> None:
        """Send prompts of others until they have taken ``blocks`` blocks; faults may strike these too."""
        at_once = CAPACITY_BLOCKS // 4
        for _ in range(max(1, blocks // at_once)):
            tokens = [self._draw.randrange(40_000, 50_000) for _ in range(at_once * BLOCK)]
            body = {"model": MODEL, "prompt": tokens, "max_tokens": 1}
            for _ in range(3):
                with suppress(httpx.TimeoutException):
                    if self.night.http.post(f"{url}/v1/completions", json=body, timeout=0.5).status_code == 200:
                        break
