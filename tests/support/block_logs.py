"""Small logs of block accesses for property tests, and what an LRU cache is by definition."""

from collections import OrderedDict

from hypothesis import strategies as st

from warmup_tasks.replay.lru import TouchOrder


@st.composite
def prefix_logs(draw, most_requests=25):
    """Prompts as paths in a tree: a block's name stands for its path, as a chained hash does."""
    names = {}
    paths = draw(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=most_requests))
    return [[names.setdefault(tuple(path[: end + 1]), len(names) + 7) for end in range(len(path))] for path in paths]


any_logs = st.one_of(prefix_logs(), st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=25))


def naive_hits(requests, capacity, touch_order=TouchOrder.LEADING_FIRST, *, counts_runs=True, warm=()):
    """Hits of each request by the definition, with an ordered dictionary."""
    cache, hits = OrderedDict(), []

    def touch(block):
        cache[block] = None
        cache.move_to_end(block)
        if len(cache) > capacity:
            cache.popitem(last=False)

    for block in warm:
        touch(block)
    for request in requests:
        found = 0
        while counts_runs and found < len(request) and request[found] in cache:
            found += 1
        for block in request if touch_order is TouchOrder.LEADING_FIRST else request[::-1]:
            found += block in cache and not counts_runs
            touch(block)
        hits.append(found)
    return hits
