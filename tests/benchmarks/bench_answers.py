"""Which questions share an answer: 999 paraphrase pairs against as many hard negatives, the gate against plain cosine.

Pairs are split by their source sentence into a half to tune on and a half to test on; hard negatives are made within
each half by the seeded rules of ``hard_negatives.py``. The threshold is the lowest that the tuner allows on the tuning
half under a false-hit budget of 1 %; every figure of the headline is measured on the other half. A full run measures
the same with the vectors of a real embedding model that vLLM serves, unless ``NO_VLLM`` is set; rows name the embedder.
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import harness
from tests.benchmarks.hard_negatives import RULES, HardNegative, hard_negatives
from warmup_tasks.demand.embedder import HashingEmbedder, Vectors
from warmup_tasks.demand.false_hits import (
    FALSE_HIT_BUDGET,
    Embeds,
    Judgement,
    LabelledPair,
    ScoredPairs,
    choose_threshold,
    judge,
    score,
)
from warmup_tasks.demand.near_miss import near_miss
from warmup_tasks.engines.vllm import VllmEngine
from warmup_tasks.errors import RejectItemError
from warmup_tasks.fleet_file import ReplicaSpec
from warmup_tasks.local.embedding_model import MODEL, ensure_embedding_model
from warmup_tasks.local.vllm_cpu import start_embedder

SEED = 7
LEAST_PAIRS = 200
DEADLINE_S = 120.0
NEVER = 1.001  # above every cosine: nothing but equal wordings would share an answer


class Half:
    """One half of the source sentences: paraphrase pairs and as many hard negatives."""

    def __init__(self, pairs: Sequence[tuple[str, str]], seed: int) -> None:
        self.same = pairs
        self.negatives: list[HardNegative] = hard_negatives(pairs, len(pairs), seed)
        self.pairs = [LabelledPair(one, other, True) for one, other in pairs]
        self.pairs += [LabelledPair(negative.question, negative.other, False) for negative in self.negatives]


class ServedEmbedder:
    """A model behind ``/v1/embeddings``; a text that it refuses as too long is cut until it fits."""

    def __init__(self, url: str) -> None:
        self._replica = ReplicaSpec(name="embedder", url=url, profile="embedder", model=MODEL)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector a text."""
        return np.asarray(asyncio.run(self._embed(list(texts))), dtype=np.float32)

    async def _embed(self, texts: list[str]) -> list[list[float]]:
        async with VllmEngine(self._replica) as engine:
            vectors = []
            for text in texts:
                while True:
                    try:
                        vectors += await engine.embed([text], MODEL, deadline_s=DEADLINE_S)
                        break
                    except RejectItemError:
                        text = text[: len(text) * 3 // 4]
            return vectors


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Tune on one half, measure on the other; ``scale`` takes fewer pairs."""
    tuning, test = halves(scale)
    rows: list[dict[str, Any]] = []
    found: dict[str, Judgement] = {}
    with ExitStack() as stack:
        embedders: dict[str, Embeds] = {"built in": HashingEmbedder()}
        if scale >= 1 and not os.environ.get("NO_VLLM"):
            model = ensure_embedding_model(Path("out/engine") / MODEL)
            server = stack.enter_context(start_embedder(model.resolve(), MODEL, out / "embedder.log"))
            embedders[MODEL] = ServedEmbedder(server.url)
        for name, embedder in embedders.items():
            tuned, tested = score(tuning.pairs, embedder), score(test.pairs, embedder)
            for contender, on, at in (
                (f"gate and cosine, {name}", tuned, tested),
                (f"plain cosine, {name}", tuned.without_gate(), tested.without_gate()),
            ):
                found[contender], more = _measure(contender, on, at)
                rows += more
    rows += _by_rule("tuning", tuning) + _by_rule("test", test)
    ours, plain = found["gate and cosine, built in"], found["plain cosine, built in"]
    headline = {
        "false_hit_share": ours.false_hit_share,
        "recall": ours.recall,
        "recall_plain_cosine": plain.recall,
        "similarity_threshold": ours.threshold,
    }
    return harness.result("answers", headline, rows)


def halves(scale: float = 1.0) -> tuple[Half, Half]:
    """Return the tuning half and the test half; no source sentence stands in both."""
    data = json.loads(harness.data_file("prompts/paraphrase_pairs.json").read_text(encoding="utf-8"))
    pairs = [(row["origin"], row["similar"]) for row in data][: max(int(len(data) * scale), LEAST_PAIRS)]
    sources = sorted({one for one, _ in pairs})
    random.Random(SEED).shuffle(sources)
    chosen = set(sources[: len(sources) // 2])
    return (
        Half([pair for pair in pairs if pair[0] in chosen], SEED),
        Half([pair for pair in pairs if pair[0] not in chosen], SEED + 1),
    )


def _measure(contender: str, tuned: ScoredPairs, tested: ScoredPairs) -> tuple[Judgement, list[dict[str, Any]]]:
    chosen = choose_threshold(tuned)
    threshold = chosen.threshold if chosen else NEVER
    on_test = judge(tested, threshold)
    rows = [
        {
            "contender": contender,
            "half": half,
            "is_within_budget": chosen is not None,
            "threshold": threshold,
            "pairs": len(scored.cosine),
            "hits": judged.hits,
            "false_hits": judged.false_hits,
            "false_hit_share": judged.false_hit_share,
            "recall": judged.recall,
        }
        for half, scored in (("tuning", tuned), ("test", tested))
        for judged in [judge(scored, threshold)]
    ]
    curve = [judge(tested, threshold) for threshold in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)]
    rows += [
        {
            "contender": contender,
            "half": "test, other thresholds",
            "threshold": judged.threshold,
            "hits": judged.hits,
            "false_hits": judged.false_hits,
            "false_hit_share": judged.false_hit_share,
            "recall": judged.recall,
            "is_refused": judged.refusal(FALSE_HIT_BUDGET) is not None,
        }
        for judged in curve
    ]
    return on_test, rows


def _by_rule(name: str, half: Half) -> list[dict[str, Any]]:
    made = Counter(negative.rule for negative in half.negatives)
    passed = Counter(n.rule for n in half.negatives if near_miss(n.question, n.other) is None)
    kept = sum(near_miss(*pair) is None for pair in half.same)
    rows = [{"contender": "gate alone", "half": name, "rule": "paraphrases", "pairs": len(half.same), "pass": kept}]
    return rows + [
        {"contender": "gate alone", "half": name, "rule": rule, "pairs": made[rule], "pass": passed[rule]}
        for rule in RULES
    ]
