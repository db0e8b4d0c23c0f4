"""What an operator can do about each reason, those of the items and four of the report's own. One sentence each.

A test keeps the list complete. No figures here.
"""

from warmup_tasks.items import Reason

NOT_PUBLISHED = "the run published nothing new"
NO_EVIDENCE = "no evidence was gathered"
NO_RECEIPT = "no task carried it out"
HELD_BACK = "the run was to warm nothing"

ADVICE: dict[str, str] = {
    NOT_PUBLISHED: "Too large a share failed, or an expectation broke: mend the other reasons first, then rerun.",
    NO_EVIDENCE: "The probe task of its profile did not finish: clear it.",
    NO_RECEIPT: "The shard's task did not finish: clear it with downstream.",
    HELD_BACK: "Intended: the head of the report says why; trigger the run again without what held it back.",
    Reason.NOT_WARMABLE: "Nothing to do: a prompt below one block can never hit.",
    Reason.TOO_LONG: "Nothing to do, unless the engine's --max-model-len is set lower than the model allows.",
    Reason.VOLATILE_HEAD: "Move clocks, ids and other changing text behind the stable part of the system prompt.",
    Reason.STALE_DATE: "Move the date behind the stable part of the prompt, or let the gateway render it late.",
    Reason.OVER_CAPACITY: "Raise budget_share, add replicas, or accept: hotter items went first.",
    Reason.ANSWER_LIMIT: "Raise max_answers, or leave it empty: each one costs the engine a whole generation.",
    Reason.HOLDOUT: "Intended: these stay cold to measure the effect; holdout_share sets how many.",
    Reason.TOMBSTONED: "Intended: `warmup invalidate --item` keeps it out until its tombstone ends.",
    Reason.SUPERSEDED: "Nothing to do: the newest plan wins. Run again without `as_of` to plan from now.",
    Reason.DEPENDENCY_FAILED: "See the reason of the embedding or adapter it depends on.",
    Reason.SALT_NOT_IN_TRAFFIC: "Set the tenant's salt_mode to what its clients send, or let them use the reader.",
    Reason.SALT_UNEXPECTED: "Set the tenant's salt_mode to as_logged, or have its clients stop sending salts.",
    Reason.ADAPTER_UNKNOWN: "Add the adapter with version and path to the fleet file, or ignore it: it was retired.",
    Reason.TRUNCATED_PROMPT: "Raise the log's prompt length limit (vLLM: --max-log-len).",
    Reason.ENGINE_REFUSED: "Read the engine's log for this model; the request was invalid for it.",
    Reason.ENGINE_UNAVAILABLE: "Check the replica and the path to it, then clear the failed tasks.",
    Reason.ADAPTER_UPDATES_OFF: "Start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and one API-server process.",
    Reason.ADAPTER_PATH_DIFFERS: "Make the fleet file and the engine agree on the adapter's path.",
    Reason.ADAPTER_STALE_PATH: "Give each adapter version a path of its own; restart or reset the replica.",
    Reason.LIVE_TRAFFIC: "Let it run when there is less traffic, or give it more room: pace_share, slo_ttft_ms, "
    "pace_wait_s.",
    Reason.EPOCH_CHANGED: "The replica restarted during the run: rerun for it.",
    Reason.EPOCH_UNKNOWN: "Start `warmup agent`, or check that it reaches both the replica and Redis.",
    Reason.IDENTITY_CONTRADICTED: "Fleet file and engine disagree: correct the file, or redeploy the replica.",
    Reason.IDENTITY_UNVERIFIED: "Let the engine answer with log-probabilities, or take the field out of "
    "required_evidence.",
    Reason.RESIDENCY_MISS: "Evicted before the probe: lower budget_share, or keep live traffic off while warming.",
    Reason.RESIDENCY_UNVERIFIED: "Start vLLM with --enable-prompt-tokens-details, or enable KV events.",
    Reason.MAYBE_EVICTED: "Lower budget_share, or keep live traffic off while warming: too full to prove it.",
    Reason.ANSWER_DIFFERS: "Stop and look: cached state answers otherwise than a cold run. Reset the replica's cache.",
    Reason.CONTROL_HIT: "The path to the engine drops cache_salt: update the gateway; tenants share blocks meanwhile.",
    Reason.SLOWER_THAN_COLD: "Warming gains nothing here: check the load on the replica, or leave the stratum out.",
    Reason.STRATUM_FAILED: "See the failures in the sample of the same stratum.",
    Reason.SERVING_STORE: "Check Redis: memory limit, connection, permissions.",
    Reason.DIMENSION_MISMATCH: "Make the fleet file's embedder agree with the one that answers.",
}

OTHERWISE = "See the logs of the task that decided this."


def plain(reason: str) -> str:
    """Return the reason without the detail that may stand behind it; unknown ones are cut to 80 characters."""
    return next((str(known) for known in ADVICE if reason.startswith(known)), reason[:80])


def advice(reason: str) -> str:
    """Return what to do about a reason, with or without a detail behind it."""
    return next((text for known, text in ADVICE.items() if reason.startswith(known)), OTHERWISE)
