"""Caches, slots and warm-ups of several replicas in simulated time, one request after another.

Times are in ms. A request finds its replica, waits for a free slot, computes what the cache does not hold, and its
blocks are resident from its start on: who comes while it computes shares its work. A warm-up under way takes a slot,
chunk by chunk, whenever one is free before the next request arrives. The cache is that of ``lru.py``; its queue of
touches is kept short by dropping void ones.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from warmup_tasks.replay.compiled import compiled

Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Requests(NamedTuple):
    """The log; ``replica`` is -1 where the loop is to choose, and holds its choice afterwards. Shapes: (requests,)."""

    ids: Ids
    offsets: Ints
    times_ms: Floats
    prompt_tokens: Ints
    replica: Ids
    hits: Ids
    ttft_ms: Floats


class Caches(NamedTuple):
    """One row a replica: each block's last touch (-1: not resident) and firing (-1: traffic), touches, slots."""

    last: Ints
    firing: Ids
    touches: Ids
    head: Ints
    tail: Ints
    resident: Ints
    evicted: Ints
    free_at_ms: Floats
    busy_ms: Floats


class WarmUps(NamedTuple):
    """Warm-ups: replica r loads ``ids[position[r]:stop[r]]`` for firing ``firing[r]``, and goes on at ``next_ms[r]``.

    ``fired_ms``, ``spent_blocks``, ``saved_blocks`` and ``done_ms`` have one entry a firing.
    """

    ids: Ids
    position: Ints
    stop: Ints
    next_ms: Floats
    firing: Ints
    fired_ms: Floats
    spent_blocks: Ints
    saved_blocks: Ints
    done_ms: Floats


class Rules(NamedTuple):
    """What does not change while it runs."""

    capacity: int
    block_tokens: int
    base_ms: float
    ms_per_token: float
    is_trailing_first: bool
    saved_within_ms: float
    chunk_blocks: int
    duty_share: float


@compiled
def _drop_void_touches(caches: Caches, replica: int) -> None:
    kept = 0
    for position in range(caches.head[replica], caches.tail[replica]):
        block = caches.touches[replica, position]
        if caches.last[replica, block] == position:
            caches.touches[replica, kept] = block
            caches.last[replica, block] = kept
            kept += 1
    caches.head[replica] = 0
    caches.tail[replica] = kept


@compiled
def _touch(caches: Caches, replica: int, block: int, firing: int, capacity: int) -> bool:
    """Touch a block; return whether it had to be inserted."""
    if caches.tail[replica] == caches.touches.shape[1]:
        _drop_void_touches(caches, replica)
    position = caches.tail[replica]
    is_new = bool(caches.last[replica, block] < 0)
    caches.last[replica, block] = position
    caches.touches[replica, position] = block
    caches.tail[replica] = position + 1
    if is_new:
        caches.firing[replica, block] = firing
        caches.resident[replica] += 1
        while caches.resident[replica] > capacity:
            head = caches.head[replica]
            oldest = caches.touches[replica, head]
            if caches.last[replica, oldest] == head:
                caches.last[replica, oldest] = -1
                caches.resident[replica] -= 1
                caches.evicted[replica] += 1
            caches.head[replica] = head + 1
    return is_new


@compiled
def preload(caches: Caches, replica: int, ids: Ids, capacity: int) -> int:
    """Load blocks at once, outside simulated time; return how many had to be inserted."""
    inserted = 0
    for position in range(ids.size):
        if _touch(caches, replica, ids[position], -1, capacity):
            inserted += 1
    return inserted


@compiled
def _run(caches: Caches, replica: int, ids: Ids, start: int, stop: int) -> int:
    run = start
    while run < stop and caches.last[replica, ids[run]] >= 0:
        run += 1
    return run - start


@compiled
def _choose(requests: Requests, caches: Caches, rules: Rules, request: int) -> int:
    """Return the replica that promises the first token soonest; among equals the next in turn."""
    start, stop = requests.offsets[request], requests.offsets[request + 1]
    replicas = caches.head.size
    best, soonest = 0, np.inf
    for step in range(replicas):
        replica = (request + step) % replicas
        cached = _run(caches, replica, requests.ids, start, stop) * rules.block_tokens
        waiting = max(0.0, caches.free_at_ms[replica].min() - requests.times_ms[request])
        uncached = max(1, requests.prompt_tokens[request] - cached)
        promised = waiting + rules.base_ms + rules.ms_per_token * uncached
        if promised < soonest:
            best, soonest = replica, promised
    return best


@compiled
def _load_chunks(caches: Caches, warm_ups: WarmUps, rules: Rules, replica: int, until_ms: float) -> None:
    """Let a replica's warm-up use free slots up to ``until_ms``."""
    while warm_ups.position[replica] < warm_ups.stop[replica]:
        slot = caches.free_at_ms[replica].argmin()
        begun = max(warm_ups.next_ms[replica], caches.free_at_ms[replica, slot])
        if begun > until_ms:
            return
        firing = warm_ups.firing[replica]
        inserted = 0
        while warm_ups.position[replica] < warm_ups.stop[replica] and inserted < rules.chunk_blocks:
            block = warm_ups.ids[warm_ups.position[replica]]
            warm_ups.position[replica] += 1
            if _touch(caches, replica, block, firing, rules.capacity):
                inserted += 1
        took = rules.base_ms + rules.ms_per_token * inserted * rules.block_tokens if inserted else 0.0
        caches.free_at_ms[replica, slot] = begun + took
        caches.busy_ms[replica] += took
        warm_ups.next_ms[replica] = begun + took / rules.duty_share
        warm_ups.spent_blocks[firing] += inserted
        if warm_ups.position[replica] == warm_ups.stop[replica]:
            warm_ups.done_ms[firing] = begun + took


@compiled
def advance(
    requests: Requests, caches: Caches, warm_ups: WarmUps, rules: Rules, first: int, stop: int, until_ms: float
) -> None:
    """Play requests [first, stop), with the warm-ups between them, then the warm-ups up to ``until_ms``."""
    for request in range(first, stop):
        now = requests.times_ms[request]
        for replica in range(caches.head.size):
            _load_chunks(caches, warm_ups, rules, replica, now)
        replica = requests.replica[request]
        if replica < 0:
            replica = _choose(requests, caches, rules, request)
            requests.replica[request] = replica
        begin, end = requests.offsets[request], requests.offsets[request + 1]
        run = _run(caches, replica, requests.ids, begin, end)
        requests.hits[request] = run
        for position in range(begin, begin + run):
            firing = caches.firing[replica, requests.ids[position]]
            if firing >= 0 and now <= warm_ups.fired_ms[firing] + rules.saved_within_ms:
                warm_ups.saved_blocks[firing] += 1
        for position in range(begin, end):
            place = begin + end - 1 - position if rules.is_trailing_first else position
            _touch(caches, replica, requests.ids[place], -1, rules.capacity)
        uncached = max(1, requests.prompt_tokens[request] - run * rules.block_tokens)
        took = rules.base_ms + rules.ms_per_token * uncached
        slot = caches.free_at_ms[replica].argmin()
        started = max(now, caches.free_at_ms[replica, slot])
        caches.free_at_ms[replica, slot] = started + took
        caches.busy_ms[replica] += took
        requests.ttft_ms[request] = started - now + took
    for replica in range(caches.head.size):
        _load_chunks(caches, warm_ups, rules, replica, until_ms)
