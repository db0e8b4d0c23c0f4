"""What warming costs, what it saves, and how much room there is: straight lines through what the survey measured.

All gains and costs are estimates in ms on one replica; what warming really brought is measured later (spec 6.5).
"""

from math import ceil, floor

from warmup_tasks.items import ReplicaState
from warmup_tasks.runs import Run

EMBEDDING_MS = 1.0
"""Computing one vector with the built-in embedder: only orders embeddings among themselves."""

ADAPTER_LOAD_MS = 200.0
"""Loading one adapter, where nothing was measured yet: only orders adapters among themselves."""


def prefill_ms(state: ReplicaState, tokens: float) -> float:
    """Return what computing ``tokens`` costs in a running batch, without the request's base cost."""
    return state.prefill_ms_per_token * tokens


def request_ms(state: ReplicaState, tokens: float) -> float:
    """Return the time to first token of a request whose ``tokens`` are all cold."""
    return state.base_ms + prefill_ms(state, tokens)


def capacity_blocks(state: ReplicaState, longest_prompt_tokens: int, run: Run) -> int:
    """Return how many blocks of a replica warm items may fill (spec 6.2).

    Engine capacity less (longest prompt × concurrency) and the canary's output, of that the budget's share; never
    below 0.
    """
    block = state.block_size
    headroom = run.parameters.concurrency * ceil(longest_prompt_tokens / block)
    headroom += ceil(run.policy.canary_output_tokens / block)
    return max(0, floor((state.capacity_tokens // block - headroom) * run.parameters.budget_share))
