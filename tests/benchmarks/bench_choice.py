"""What a choice gains in the first minutes after a restart: ours, the simple rules, and the best in hindsight.

Public logs are replayed from several restarts on: Mooncake's conversations, and one half of the coding sessions, drawn
by seed, each begun at a drawn moment of an hour, since their clocks are relative. Hits of the first five minutes are
counted by ``replay.simulate``, in a cache that holds everything and in one that holds the budget alone. The model's
leaves were chosen on the other half of the coding sessions; the conversations were in view while its features were
written, so they are no blind test. Without the public logs, or at a scale below 0.1, a
synthetic log stands in, of which nothing can be learnt but counts and recency.
"""

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import orjson

from tests.benchmarks import harness
from tests.benchmarks.block_trace import block_trace
from warmup_tasks.planning.choice import BlockChooser
from warmup_tasks.replay.accesses import Accesses, Ids
from warmup_tasks.replay.oracle import oracle, oracle_in_small_cache
from warmup_tasks.replay.rules import by_count, by_recency, last_lru_state
from warmup_tasks.replay.simulate import simulate

BUDGETS = (2_000, 5_000, 10_000, 20_000)
RULES = {"by_count": by_count, "by_recency": by_recency, "last_lru_state": last_lru_state}
WINDOW_S = 300.0
SPREAD_S = 3_600.0
SEED = 1
SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LEAST_REAL_SCALE = 0.1
SYNTHETIC_ACCESSES = 60_000


class Log(NamedTuple):
    """A log and the moments at which its replica restarts."""

    name: str
    accesses: Accesses
    restarts_s: list[float]


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Score every choice at every restart; a smaller scale takes fewer restarts."""
    count = max(1, round(len(SHARES) * min(1.0, scale)))
    shares = [SHARES[round(place)] for place in np.linspace(len(SHARES) - 1, 0, count)]
    folder = _folder()
    if folder is None or scale < LEAST_REAL_SCALE:
        logs = [_synthetic(shares)]
    else:
        logs = [
            _conversations(folder / "mooncake" / "conversation_trace.jsonl.gz", shares),
            _coding(folder / "coding_sessions" / "sessions.jsonl.gz", shares),
        ]
    rows = [row for log in logs for restart_s in log.restarts_s for row in _score(log, restart_s)]
    headline: dict[str, float] = {}
    for name, chosen in (("", rows), *((f"_{log.name}", [r for r in rows if r["log"] == log.name]) for log in logs)):
        headline |= _headline(name, [row for row in chosen if row["cache"] == "holds everything"])
        headline |= _headline(f"{name}_small_cache", [row for row in chosen if row["cache"] == "budget"])
    headline["slowest_choice_s"] = max(row["choice_s"] for row in rows)
    return harness.result("choice", headline, [one for row in rows for one in _by_contender(row)])


def _by_contender(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one row for each choice, with its hit ratio and what it gains of what the oracle gains."""
    facts = {name: value for name, value in row.items() if not name.startswith(("hits_", "share_"))}
    hits = {name.removeprefix("hits_"): value for name, value in row.items() if name.startswith("hits_")}
    most = max(1, hits["oracle"] - hits["cold"])
    for contender, found in hits.items():
        ratio = found / row["asked_blocks"] if row["asked_blocks"] else 0.0
        share = (found - hits["cold"]) / most
        yield {"contender": contender, "hit_ratio": ratio, "share_of_oracle_gain": share, **facts}


def _headline(suffix: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    ours, best = (mean(row[name] for row in rows) for name in ("share_ours", "share_best_rule"))
    return {
        f"share_of_oracle_gain_ours{suffix}": ours,
        f"share_of_oracle_gain_best_rule{suffix}": best,
        f"ratio_to_best_rule{suffix}": ours / best if best else 1.0,
        f"worst_margin_to_best_rule{suffix}": min(row["share_ours"] - row["share_best_rule"] for row in rows),
    }


def _score(log: Log, restart_s: float) -> Iterator[dict[str, Any]]:
    accesses, past = log.accesses, log.accesses.between(until_s=restart_s)
    begun = perf_counter()
    chooser = BlockChooser(accesses, restart_s, WINDOW_S)
    choice_s = perf_counter() - begun
    for budget in BUDGETS:
        warm: dict[str, Ids | None] = {"cold": None, "ours": chooser.choose(budget)}
        warm |= {name: rule(past, budget) for name, rule in RULES.items()}
        facts = {"log": log.name, "restart_s": round(restart_s, 1), "budget_blocks": budget, "choice_s": choice_s}
        facts |= {"basis": str(chooser.basis(budget)), "backtest": _named(chooser, budget)}
        everything = {"oracle": oracle(accesses, restart_s, WINDOW_S, budget)}
        everything["oracle_unrestricted"] = oracle(accesses, restart_s, WINDOW_S, budget, is_known_only=False)
        yield {**facts, "cache": "holds everything", **_hits(log, restart_s, accesses.blocks, warm | everything)}
        small = {"oracle": oracle_in_small_cache(accesses, restart_s, WINDOW_S, budget, budget)}
        yield {**facts, "cache": "budget", **_hits(log, restart_s, budget, warm | small)}


def _named(chooser: BlockChooser, budget: int) -> dict[str, float]:
    shares = chooser.prediction.saved_shares(budget * chooser.history.step_tokens)
    return {str(basis): round(share, 4) for basis, share in shares.items()}


def _hits(log: Log, restart_s: float, capacity: int, warm: dict[str, Ids | None]) -> dict[str, Any]:
    """Return the hit ratio of each warm set, and what ours and the best rule gain of what the oracle gains."""
    results = {
        name: simulate(log.accesses, capacity, warm=ids, restart_at_s=restart_s, window_s=WINDOW_S)
        for name, ids in warm.items()
    }
    hits = {name: result.hit_blocks for name, result in results.items()}
    gains = {name: hits[name] - hits["cold"] for name in hits}
    best = max(RULES, key=lambda name: gains[name])
    return {
        "capacity_blocks": capacity,
        "asked_blocks": results["cold"].asked_blocks,
        **{f"hits_{name}": found for name, found in hits.items()},
        "best_rule": best,
        "share_ours": gains["ours"] / max(1, gains["oracle"]),
        "share_best_rule": gains[best] / max(1, gains["oracle"]),
    }


def _conversations(path: Path, shares: list[float]) -> Log:
    with gzip.open(path) as lines:
        rows = [orjson.loads(line) for line in lines]
    requests, times = [row["hash_ids"] for row in rows], [row["timestamp"] / 1000 for row in rows]
    accesses = Accesses.of(requests, times, block_tokens=512, prompt_tokens=[row["input_length"] for row in rows])
    return Log("conversation", accesses, [share * times[-1] for share in shares])


def _coding(path: Path, shares: list[float], *, half: int = 1) -> Log:
    with gzip.open(path) as lines:
        sessions = [orjson.loads(line) for line in lines]
    random = np.random.default_rng(SEED)
    found: list[tuple[float, np.ndarray]] = []
    for number in random.permutation(len(sessions))[half::2].tolist():
        begin_s = random.uniform(0, SPREAD_S)
        base = np.uint64(number << 24)
        found += [(begin_s + at, blocks + base) for at, blocks in _requests(sessions[number]["requests"])]
    found.sort(key=lambda request: request[0])
    accesses = Accesses.of([blocks for _, blocks in found], [at for at, _ in found], block_tokens=64)
    return Log("coding", accesses, [(share + 0.1) * SPREAD_S for share in shares])


def _requests(rows: list[dict[str, Any]], offset_s: float = 0.0) -> Iterator[tuple[float, np.ndarray]]:
    for row in rows:
        if row.get("type") == "subagent":
            yield from _requests(row["requests"], offset_s + row["t"])
        elif row.get("hash_ranges"):
            ranges = [np.arange(low, high + 1, dtype=np.uint64) for low, high in row["hash_ranges"]]
            yield offset_s + row["t"], np.concatenate(ranges)


def _synthetic(shares: list[float]) -> Log:
    names, lengths = block_trace(SYNTHETIC_ACCESSES)
    times_s = np.linspace(0.0, SPREAD_S, len(lengths))
    return Log(
        "synthetic", Accesses.of_arrays(names, lengths, times_s, block_tokens=16), [s * SPREAD_S for s in shares]
    )


def _folder() -> Path | None:
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("WARMUP_TEST_DATA") or beside)
    return folder if folder.is_dir() else None
