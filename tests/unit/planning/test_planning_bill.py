"""What a plan costs before anything is warmed: by hand for two prefixes and an answer."""

from warmup_tasks.items import Arm, ItemKind, PlanRow
from warmup_tasks.planning.bill import MARK_BYTES, VALUE_BYTES, bill
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunPolicy, RunRequest


def row(kind: ItemKind, replica: str | None, tokens: int, unique: int, cost_ms: float, **more) -> PlanRow:
    values = {"is_chosen": True, "arm": Arm.WARM, "profile": "large", **more}
    return PlanRow.model_construct(
        kind=kind, replica=replica, prompt_tokens=tokens, unique_tokens=unique, expected_cost_ms=cost_ms, **values
    )


def test_tokens_seconds_and_bytes_of_each_place(run: Run, replicas) -> None:
    state = replicas[0]
    policy = RunPolicy(max_twins_per_replica=1, response_tokens=10)
    asked = Run.of(RunRequest(as_of=run.as_of), policy)
    rows = [
        row(ItemKind.KV_PREFIX, state.replica, 1000, 1000, 510.0, profile=state.profile),
        row(ItemKind.KV_PREFIX, state.replica, 2000, 500, 260.0, profile=state.profile),
        row(ItemKind.KV_PREFIX, state.replica, 9000, 9000, 9000.0, profile=state.profile, is_chosen=False),
        row(ItemKind.KV_PREFIX, state.replica, 9000, 9000, 9000.0, profile=state.profile, arm=Arm.HOLDOUT),
        row(ItemKind.RESPONSE, None, 300, 300, 4000.0, profile=state.profile),
        row(ItemKind.EMBEDDING, None, 300, 0, 1.0, profile=state.profile),
    ]
    found = bill(asked, [state], rows, dimensions=256)
    assert found["replicas"][state.replica] == {
        "items": 2,
        "prefill_tokens": 1500,
        "warming_s": 0.8,
        "validation_s": round((10 + 0.5 * 2000 + 2 * 10) / 1000, 1),
        "redis_bytes": 2 * MARK_BYTES,
    }
    assert found["stores"][state.profile] == {
        "items": 2,
        "prefill_tokens": 300,
        "warming_s": 4.0,
        "validation_s": 0.0,
        "redis_bytes": 2 * MARK_BYTES + VALUE_BYTES + 50 + VALUE_BYTES + 1024,
    }
    assert found["ready_in_s"] == 4.0 + 0.8 + 1.0


def test_nothing_planned_costs_nothing(run: Run) -> None:
    assert bill(run, [], [], dimensions=4) == {"replicas": {}, "stores": {}, "ready_in_s": 0.0}
