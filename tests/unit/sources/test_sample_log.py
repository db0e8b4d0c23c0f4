"""The demo log has everything in it that it promises, found again by reading it as any other log."""

import re
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pytest

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import PromptBody
from warmup_tasks.lake import Lake
from warmup_tasks.replay.logs import read_accesses
from warmup_tasks.replay.lru import replay_lru
from warmup_tasks.sources import ExtractionSummary, extract
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.sample_log import ADAPTERS, DEFAULT_AS_OF, MODEL, SampleLogSummary, write_sample_log

Query = Callable[[str], list[dict[str, Any]]]
BAD_KINDS = {
    Fault.NOT_UTF8, Fault.NUL_BYTE, Fault.LINE_TOO_LONG, Fault.TRUNCATED_LINE, Fault.CUT_SHORT, Fault.NOT_JSON,
    Fault.NOT_AN_OBJECT, Fault.NO_TIME, Fault.BAD_TIME, Fault.BAD_TYPE, Fault.EMPTY_TENANT,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sample")


@pytest.fixture(scope="module")
def written(folder: Path) -> SampleLogSummary:
    return write_sample_log(folder / "log")


@pytest.fixture(scope="module")
def lake(folder: Path) -> Lake:
    return Lake(str(folder / "lake"))


@pytest.fixture(scope="module")
def read(written: SampleLogSummary, lake: Lake) -> ExtractionSummary:
    return extract(lake, written.folder)


@pytest.fixture(scope="module")
def ask(read: ExtractionSummary, lake: Lake) -> Query:
    """Run a query over ``r``, all requests of the log."""
    refs = [f"requests/{day}:requests" for day in lake.partitions("requests")]
    return lambda statement: lake.query(statement, {"r": refs}, {}).to_pylist()


def test_what_was_written_is_what_is_read(written: SampleLogSummary, read: ExtractionSummary) -> None:
    assert read.requests_usable == written.requests
    assert read.duplicates == written.duplicates > 0
    assert read.not_a_request == written.not_a_request > 0
    assert read.feedback_rows == written.feedback_rows > 30
    assert read.quarantined_by_reason == written.bad_rows_by_reason
    assert set(read.quarantined_by_reason) == set(map(str, BAD_KINDS))
    assert (read.models, read.adapters, read.tenants, read.salts) == ([MODEL], sorted(ADAPTERS), 20, 2)
    assert {file.format for file in read.files} == {"normalised", "openai"}


def test_the_default_size_is_quick_and_its_first_minutes_are_full(written: SampleLogSummary, ask: Query) -> None:
    assert 4_000 <= written.requests <= 6_000
    assert written.unique_prompts <= 2_500
    assert written.first_time < DEFAULT_AS_OF - timedelta(days=2, hours=23)
    assert written.requests_after_as_of >= 150
    end = DEFAULT_AS_OF + timedelta(minutes=5)
    (first,) = ask(f"select count(*) as n from r where time >= '{DEFAULT_AS_OF}' and time < '{end}'")
    assert first["n"] >= 60


def test_days_are_busy_and_nights_are_quiet(ask: Query) -> None:
    by_hour = {row["h"]: row["n"] for row in ask("select hour(time) as h, count(*) as n from r group by h")}
    assert by_hour[2] > 3 * by_hour[4]
    assert by_hour[8] > 2 * by_hour[18]


def test_a_tenth_of_the_tenants_make_most_of_the_traffic(ask: Query) -> None:
    counts = [row["n"] for row in ask("select tenant, count(*) as n from r group by tenant order by n desc")]
    assert sum(counts[:2]) > 0.5 * sum(counts)
    assert min(counts) > 0


class Traffic(NamedTuple):
    """Some tenants' requests on one cache without limit: how often each block was asked for, and hits by request."""

    uses: npt.NDArray[np.int64]
    hits: npt.NDArray[np.int32]
    is_session: npt.NDArray[np.bool_]


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("week")
    write_sample_log(folder / "log", days=8)
    lake = Lake(str(folder / "lake"))
    extract(lake, str(folder / "log"))
    return lake


def _traffic(lake: Lake, *, has_tools: bool) -> Traffic:
    """People chat without tools; programs send their tools, or a bare prompt."""
    refs = [f"requests/{day}:requests" for day in lake.partitions("requests")]
    condition = f"{'' if has_tools else 'NOT'} (body_json LIKE '%\"tools\"%' OR request_type = 'completion')"
    rows = lake.query(f"SELECT * FROM r WHERE body_json IS NOT NULL AND {condition}", {"r": refs})
    accesses = read_accesses(lake, requests=rows).accesses
    replayed = replay_lru(accesses, None)
    is_session = {
        round(row["t"], 3): row["s"] is not None
        for row in lake.query("SELECT epoch_us(time) / 1e6 AS t, session_id AS s FROM r", {"r": rows}).to_pylist()
    }
    return Traffic(
        np.bincount(accesses.ids),
        replayed.hits,
        np.asarray([is_session[round(moment, 3)] for moment in accesses.times_s.tolist()]),
    )


def test_a_tenth_of_the_blocks_makes_most_reuses_of_chats(week: Lake) -> None:
    """77 % in a published trace of people's chats."""
    reuses = np.sort(_traffic(week, has_tools=False).uses - 1)[::-1]
    assert reuses[: len(reuses) // 10].sum() / reuses.sum() == pytest.approx(0.77, abs=0.04)


def test_nearly_all_hits_of_programs_come_from_single_requests_behind_shared_prompts(week: Lake) -> None:
    """97 % in a published trace of requests through an interface for programs."""
    traffic = _traffic(week, has_tools=True)
    share = traffic.hits[~traffic.is_session].sum() / traffic.hits.sum()
    assert share == pytest.approx(0.97, abs=0.015)


def test_many_days_can_be_compared_night_by_night(week: Lake) -> None:
    days = week.partitions("requests")
    assert len(days) == 9
    refs = [f"requests/{day}:requests" for day in days]
    by_day = week.query(
        "SELECT CAST(time AS DATE) AS day, list(DISTINCT prompt_sha256) AS prompts FROM r GROUP BY day ORDER BY day",
        {"r": refs},
    ).to_pylist()
    prompts = [set(row["prompts"]) for row in by_day]
    for earlier, later in pairwise(prompts[1:]):
        known = len(earlier & later) / len(later)
        assert 0.05 < known < 0.9, "a day's questions are partly those of the day before, partly its own"


def test_system_prompts_are_long_and_their_tools_stand_in_the_order_sent(ask: Query) -> None:
    bodies = [
        PromptBody.model_validate_json(r["b"]) for r in ask("select any_value(body_json) as b from r group by tenant")
    ]
    with_system = [body for body in bodies if body.messages]
    assert len(with_system) == 19
    programs = [body for body in with_system if body.tools]
    assert len(programs) == 12
    for body in programs:
        assert body.messages is not None
        assert body.tools is not None
        assert 3_500 <= len(body.messages[0]["content"]) + len(orjson.dumps(body.tools)) <= 12_000
    assert [body.template_args for body in bodies if body.template_args] == [{"enable_thinking": False}]


def test_sessions_grow_turn_by_turn(ask: Query) -> None:
    rows = ask("select session_id as s, body_json as b from r where session_id is not null order by s, time")
    sessions: dict[str, list[list[dict[str, Any]]]] = {}
    for row in rows:
        sessions.setdefault(row["s"], []).append(orjson.loads(row["b"])["messages"][1:])
    grown = [turns for turns in sessions.values() if len(turns) >= 2]
    assert len(grown) > 100
    assert all(later[: len(earlier)] == earlier for turns in grown for earlier, later in pairwise(turns))


def test_adapters_salts_and_error_statuses_stand_in_the_rows(ask: Query) -> None:
    assert {r["adapter"] for r in ask("select distinct adapter from r where adapter is not null")} == set(ADAPTERS)
    salted = ask("select tenant, count(distinct cache_salt) as n from r where cache_salt is not null group by tenant")
    assert [row["n"] for row in salted] == [1, 1]
    assert {r["status"] for r in ask("select distinct status from r")} == {200, 400, 429, 500, 503}
    (known,) = ask(
        "select count(cached_tokens) as n, count(*) - count(cached_tokens) as unknown, count(ttft_ms) as t from r"
    )
    assert min(known["n"], known["unknown"], known["t"]) > 100
    assert ask("select count(*) as n from r where cached_tokens = 0")[0]["n"] > 10


def test_questions_repeat_exactly_and_in_other_words(ask: Query) -> None:
    (repeated,) = ask("select count(*) as n from (select prompt_sha256 from r group by all having count(*) >= 5)")
    assert repeated["n"] > 60
    last = "json_extract_string(body_json, '$.messages[#-1].content')"
    texts = [r["t"] for r in ask(f"select distinct {last} as t from r where tenant = 'kirin-bank'")]
    asked = {match[1] for text in texts if (match := re.match(r"How do I (.+)\?$", text))}
    rephrased = {match[1] for text in texts if (match := re.match(r"How can I (.+)\?$", text))}
    assert len(asked & rephrased) >= 3
    shared = ask(f"select count(distinct tenant) as n from r where {last} = 'What is my account balance?'")
    assert shared[0]["n"] >= 10


def test_heads_that_change_by_the_second_and_by_the_day(ask: Query) -> None:
    head = "left(json_extract_string(body_json, '$.messages[0].content'), 60)"
    counts = f"select count(*) as n, count(distinct {head}) as heads from r where {head} like"
    (clock,) = ask(f"{counts} 'Current time is %'")
    assert clock["n"] >= 50
    assert clock["heads"] > 0.9 * clock["n"]
    (date,) = ask(f"{counts} 'Today''s date is %'")
    assert date["n"] > date["heads"]
    assert date["heads"] in (3, 4)


def test_prompts_that_are_too_short_and_too_long(ask: Query) -> None:
    short = ask("select count(*) as n from r where request_type = 'completion' and input_tokens <= 15")[0]["n"]
    too_long = ask("select count(*) as n from r where length(body_json) > 50_000 and status = 400")[0]["n"]
    assert short > 20
    assert 1 <= too_long <= 30


def test_feedback_speaks_of_prompts_in_the_log(read: ExtractionSummary, lake: Lake, ask: Query) -> None:
    known = {row["p"] for row in ask("select distinct prompt_sha256 as p from r")}
    rows = [row for day in lake.partitions("feedback") for row in lake.read(f"feedback/{day}", "feedback").to_pylist()]
    assert {row["prompt_sha256"] for row in rows} <= known
    renewed = [row for row in rows if row["confidence"] < 0.85 and row["adopted_count"] >= 3 and row["correction"]]
    assert 5 <= len(renewed) < len(rows)


def test_same_seed_same_bytes_other_seed_other_log(tmp_path: Path) -> None:
    def files(name: str, seed: int) -> dict[str, bytes]:
        write_sample_log(tmp_path / name, seed=seed, days=1, scale=0.05)
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    assert files("a", 1) == files("b", 1) != files("c", 2)


def test_traffic_scales_and_weekends_are_quieter(tmp_path: Path) -> None:
    small = write_sample_log(tmp_path / "small", days=1, scale=0.1)
    large = write_sample_log(tmp_path / "large", days=1, scale=0.4)
    assert 2.5 < large.requests / small.requests < 6
    sunday = write_sample_log(tmp_path / "sunday", days=1, scale=0.4, end=DEFAULT_AS_OF + timedelta(days=2))
    assert sunday.requests < 0.7 * large.requests


def test_arguments_that_leave_nothing_or_no_zone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="scale"):
        write_sample_log(tmp_path, scale=0.0)
    with pytest.raises(ConfigurationError, match="time zone"):
        write_sample_log(tmp_path, end=DEFAULT_AS_OF.replace(tzinfo=None))
