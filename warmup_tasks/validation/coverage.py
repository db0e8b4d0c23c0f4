"""Coverage k of n: on how many of the replicas that serve its model an item is ready.

Behind a balancing address a request meets any of them, so an item that is ready on one of two is warm half of the time.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.items import Evidence


def items_by_coverage(evidence: Iterable[Evidence], fleet: FleetFile) -> dict[str, dict[str, int]]:
    """Return model → ``k of n`` → how many items are ready on k of the n replicas that the fleet has of it.

    Args:
        evidence: of all replicas, as it was judged at last; what lives in the serving store is not counted.
        fleet: the fleet file.
    """
    model_of = {replica.name: replica.model for replica in fleet.replicas}
    replicas = Counter(model_of.values())
    ready: dict[tuple[str, str], int] = defaultdict(int)
    for seen in evidence:
        if seen.replica in model_of:
            ready[model_of[seen.replica], seen.item_id] += seen.is_ready
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for (model, _), places in ready.items():
        counts[model][places] += 1
    return {
        model: {f"{places} of {replicas[model]}": n for places, n in sorted(found.items(), reverse=True)}
        for model, found in sorted(counts.items())
    }
