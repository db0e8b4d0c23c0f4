"""The profile step on a real lake: what reaches the plan, what is refused and why, and that nothing later leaks in."""

from collections.abc import Callable
from typing import Any

import pytest

from warmup_tasks.demand import profile
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.identity import derived_salt
from warmup_tasks.items import Feedback, PromptBody, Reason, ReplicaState
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.runs import Run

Ask = Callable[..., dict[str, Any]]
Publish = Callable[[list[dict[str, Any]]], None]
Night = Callable[..., tuple[str, dict[str, Any]]]

RULES = " ".join(f"rule{letter}" for letter in "abcdefghijklmnopqrst")  # 20 words


@pytest.fixture
def night(lake: Lake, run: Run, fleet: FleetFile, replicas: list[ReplicaState], engine: Any, publish: Publish) -> Night:
    def profiled(rows: list[dict[str, Any]], **updates: Any) -> tuple[str, dict[str, Any]]:
        publish(rows)
        return profile(lake, run.model_copy(update=updates), fleet, replicas, engine)

    return profiled


def chat(question: str, system: str = RULES) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def _reasons(lake: Lake, ref: str) -> dict[str, int]:
    rows = lake.read(ref, "refused").to_pylist()
    return {row["reason"]: sum(r["reason"] == row["reason"] for r in rows) for row in rows}


def test_a_shared_system_prompt_becomes_one_node_with_all_its_uses(lake: Lake, night: Night, ask: Ask) -> None:
    rows = [ask(chat(f"{word} " * 9), session_id=word, tenant=tenant) for word in "xyz" for tenant in ("acme", "beta")]
    ref, summary = night(rows)
    nodes = lake.read(ref, "nodes").to_pylist()
    # system + 20 rules + user = 22 words, block 4: 20 tokens are whole shared blocks, the rest parts in the sixth
    assert [(n["start_tokens"], n["end_tokens"], n["uses"], n["sessions"]) for n in nodes] == [
        (0, 20, 6, 3),
        *[(20, 28, 2, 1)] * 3,
    ]
    assert [n["tenant"] for n in nodes] == [None] * 4
    assert [n["subtree_root"] for n in nodes] == [None, *(n["name"] for n in nodes[1:])]
    paths = lake.read(ref, "paths").to_pylist()
    assert [len(row["token_ids"]) for row in paths] == [29, 29, 29]
    assert (summary["requests"], summary["distinct_prompts"], summary["step_tokens"]) == (6, 6, {"m": 4})


def test_tokens_of_a_node_are_those_of_the_prompt_and_one_more(lake: Lake, night: Night, ask: Ask, engine: Any) -> None:
    body = chat("tell me more about it")
    ref, _ = night([ask(body), ask(body)])
    (path,) = lake.read(ref, "paths").to_pylist()
    (whole,) = engine([(PromptBody(messages=body), "m")])
    assert path["token_ids"] == whole[: (len(whole) - 1) // 4 * 4 + 1]


def test_nothing_at_or_after_as_of_is_seen(lake: Lake, night: Night, ask: Ask) -> None:
    rows = [ask(chat("before"), age_s=1.0), ask(chat("before"), age_s=2.0)]
    ref, before = night(rows)
    tables = {name: lake.read(ref, name) for name in ("nodes", "prompts", "heat_buckets", "refused")}
    again, after = night([*rows, *(ask(chat(f"later {n} " * 9), age_s=-float(n)) for n in range(50))])
    assert (again, after["requests"]) == (ref, before["requests"])
    assert all(lake.read(again, name).equals(table) for name, table in tables.items())


def test_the_same_night_twice_gives_the_same_reference(lake: Lake, night: Night, ask: Ask) -> None:
    rows = [ask(chat(f"q{n % 7}"), age_s=60.0 * n + 1, session_id=f"s{n % 3}") for n in range(60)]
    first, summary = night(rows)
    second, repeated = night(rows)
    assert first == second
    assert (summary["tokenised"], repeated["tokenised"], repeated["tokens_reused"]) == (7, 0, 7)


def test_short_long_truncated_and_refused_prompts_are_counted_with_their_reason(
    lake: Lake, night: Night, ask: Ask
) -> None:
    rows = [
        ask("hi you"),  # 3 tokens, block 4
        ask("four words make four"),  # 5 tokens: one block, and one token more
        ask("word " * 584),  # 585 and 16 for the answer exceed 600
        ask("word " * 583),  # just fits
        ask(f"cut {RULES}", is_truncated=True),
        ask("refuse-me please"),
    ]
    ref, summary = night(rows)
    assert _reasons(lake, ref) == {
        Reason.NOT_WARMABLE: 1,
        Reason.TOO_LONG: 1,
        Reason.TRUNCATED_PROMPT: 1,
        Reason.ENGINE_REFUSED: 1,
    }
    assert summary["refused"][Reason.TOO_LONG] == {"prompts": 1, "requests": 1}


def test_refused_rows_are_bounded_and_the_rest_is_counted(lake: Lake, night: Night, ask: Ask) -> None:
    ref, summary = night([ask(f"w{n}") for n in range(30)], parameters=GoldenParameters(top_k=10))
    assert lake.read(ref, "refused").num_rows == 10
    assert summary["refused"] == {Reason.NOT_WARMABLE: {"prompts": 30, "requests": 30}}


def test_each_salt_mode_warms_exactly_the_salts_that_live_requests_send(
    lake: Lake, night: Night, ask: Ask, fleet: FleetFile
) -> None:
    good = derived_salt("derived", fleet.identity("m").digest())
    of_adapter = derived_salt("derived", fleet.identity("m", "legal").digest())
    cases = [
        ("acme", None, None, None),
        ("acme", "s1", None, Reason.SALT_UNEXPECTED),
        ("logged", None, None, None),
        ("logged", "s1", None, None),
        ("logged", "a@b", None, Reason.ENGINE_REFUSED),
        ("derived", good, None, None),
        ("derived", of_adapter, "legal", None),
        ("derived", of_adapter, None, Reason.SALT_NOT_IN_TRAFFIC),
        ("derived", None, None, Reason.SALT_NOT_IN_TRAFFIC),
        ("derived", "s1", None, Reason.SALT_NOT_IN_TRAFFIC),
    ]
    rows = [ask(chat("hello"), tenant=t, cache_salt=salt, adapter=a) for t, salt, a, _ in cases for _ in range(2)]
    ref, _ = night(rows)
    warmed = {(n["cache_salt"], n["adapter"], n["uses"]) for n in lake.read(ref, "nodes").to_pylist()}
    assert warmed == {(None, None, 4), ("s1", None, 2), (good, None, 2), (of_adapter, "legal", 2)}
    refused = {(r["tenant"], r["cache_salt"], r["reason"]) for r in lake.read(ref, "refused").to_pylist()}
    assert refused == {(t, salt, str(reason)) for t, salt, _, reason in cases if reason}


def test_prompts_of_an_unknown_adapter_are_refused(lake: Lake, night: Night, ask: Ask) -> None:
    ref, _ = night([ask(chat("hello"), adapter="gone"), ask(chat("hello"), adapter="legal")])
    assert _reasons(lake, ref) == {Reason.ADAPTER_UNKNOWN: 1}
    listed = {row["adapter"]: row["is_listed"] for row in lake.read(ref, "adapters").to_pylist()}
    assert listed == {"gone": False, "legal": True}


def test_a_changing_clock_leaves_nothing_to_warm(lake: Lake, night: Night, ask: Ask) -> None:
    text = "Time: 15:09:{:02d}. Today's date is 2026-11-26. " + RULES * 9
    rows = [ask(chat("hi", text.format(n % 50)), age_s=40_000 - n) for n in range(100)]
    ref, _ = night(rows)
    assert lake.read(ref, "nodes").num_rows == 0
    assert lake.read(ref, "prompts").num_rows == 0
    assert _reasons(lake, ref) == {Reason.VOLATILE_HEAD: 50}


def test_no_answer_is_kept_for_a_short_prompt_with_yesterday_s_date(lake: Lake, night: Night, ask: Ask) -> None:
    ref, _ = night([ask("weather 2026-11-26", age_s=9000.0), ask("weather 2026-11-26", age_s=9500.0)])
    assert _reasons(lake, ref) == {Reason.NOT_WARMABLE: 1}
    assert lake.read(ref, "prompts").num_rows == 0


def test_yesterday_s_date_is_never_warmed_and_today_s_is(lake: Lake, night: Night, ask: Ask) -> None:
    rows = [ask(chat("hi", f"Today is 2026-11-26. {RULES}"), age_s=9000.0 + n) for n in range(20)]
    rows += [ask(chat("hi", f"Today is 2026-11-27. {RULES}"), age_s=60.0 + n) for n in range(5)]
    ref, _ = night(rows)
    assert [(n["uses"], n["start_tokens"]) for n in lake.read(ref, "nodes").to_pylist()] == [(5, 0)]
    (prompt,) = lake.read(ref, "prompts").to_pylist()
    assert "2026-11-27" in prompt["body_json"]
    assert _reasons(lake, ref) == {Reason.STALE_DATE: 1}


def test_only_prompts_that_came_back_are_repeated_ones_each_tenant_alone(lake: Lake, night: Night, ask: Ask) -> None:
    rows = [ask("what is up with my balance", tenant=t) for t in ("acme", "acme", "beta")]
    rows += [ask("failing", status=500), ask("failing", status=500), ask("failing")]
    ref, _ = night(rows)
    found = {(p["tenant"], p["uses"], p["ok_uses"]) for p in lake.read(ref, "prompts").to_pylist()}
    assert found == {("acme", 2, 2), ("acme", 3, 1)}


def test_the_body_is_kept_exactly_as_sent(lake: Lake, night: Night, ask: Ask) -> None:
    tools = [{"type": "function", "function": {"name": "z", "parameters": {"b": 1, "a": 2}}}]
    body = PromptBody(messages=chat("hello"), tools=tools, template_args={"zeta": 1, "alpha": 2})
    row = ask(body)
    ref, _ = night([row, row])
    (prompt,) = lake.read(ref, "prompts").to_pylist()
    assert prompt["body_json"] == row["body_json"]
    assert prompt["body_json"].index('"b"') < prompt["body_json"].index('"a"')


def test_adopted_corrections_become_the_answer_of_their_own_tenant(
    lake: Lake, night: Night, ask: Ask, run: Run
) -> None:
    row = ask(chat("How do I reset my password?"))
    feedback = Feedback(
        time=row["time"],
        tenant="acme",
        prompt_sha256=row["prompt_sha256"],
        intent_hash=None,
        confidence=0.4,
        correction="Press reset.",
        adopted_count=3,
    )
    lake.publish("feedback", "2026-11-27", {"feedback": to_table([feedback], Feedback)})
    other = ask(chat("how do I reset my password"))
    ref, _ = night(
        [
            row,
            other,
            ask(row and chat("How do I reset my password?"), tenant="beta"),
            ask(chat("How do I reset my password?"), tenant="beta"),
        ]
    )
    intents = {i["tenant"]: i for i in lake.read(ref, "intents").to_pylist()}
    assert (intents["acme"]["correction"], intents["acme"]["uses"]) == ("Press reset.", 2)
    assert len(intents["acme"]["member_prompts"]) == 2
    assert intents["beta"]["correction"] is None


def test_rows_without_content_count_in_the_heat_alone(lake: Lake, night: Night, ask: Ask) -> None:
    rows = [ask(None, request_type="unknown", block_hashes=[2**63 + 5, 7]) for _ in range(3)]
    ref, summary = night(rows)
    assert (summary["without_content"], summary["nodes"]) == (3, 0)
    assert sum(row["requests"] for row in lake.read(ref, "heat_buckets").to_pylist()) == 3


def test_a_granularity_must_fit_the_blocks(night: Night, ask: Ask) -> None:
    with pytest.raises(ConfigurationError, match="cache_granularity_tokens: 6 is no multiple of 4"):
        night([ask("hi")], parameters=GoldenParameters(cache_granularity_tokens=6))


def test_granularity_is_the_tree_s_step(lake: Lake, night: Night, ask: Ask) -> None:
    ref, _ = night(
        [ask(chat("a b c d e")), ask(chat("a b c d e"))], parameters=GoldenParameters(cache_granularity_tokens=8)
    )
    assert [n["end_tokens"] for n in lake.read(ref, "nodes").to_pylist()] == [24]


def test_no_replica_is_said(lake: Lake, run: Run, fleet: FleetFile, engine: Any) -> None:
    with pytest.raises(ConfigurationError, match="replicas"):
        profile(lake, run, fleet, [], engine)
