"""The page and the console: what they show, what they never show, and that nothing outside is needed."""

import io
import re
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from rich.console import Console

from warmup_tasks.lake.store import Lake
from warmup_tasks.parameters import GoldenParameters, PrefetchStrategy
from warmup_tasks.reporting import plots, print_summary, report_tables, summarise, svg, write_report
from warmup_tasks.reporting.console import print_mapping
from warmup_tasks.reporting.model import Cost, Items, ModelCoverage, Publication
from warmup_tasks.reporting.report import parameter_rows, verdict


@pytest.fixture
def page(night, tmp_path) -> str:
    summary = summarise(night.lake, night.run, stages_s={"extract": 1.0, "plan": 0.5}, task_count=31)
    return write_report(summary, report_tables(night.lake, night.run), tmp_path / "run").read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_outside(page):
    assert not re.search(r'(src|href|url\()\s*=?\s*["\'(]?(https?:)?//', page)
    assert "<script" not in page
    assert "<link" not in page
    assert "@import" not in page


def test_the_page_shows_no_prompt_and_no_answer(page):
    from tests.unit.reporting.conftest import SECRET  # the twins and requests in the lake carry it

    assert SECRET not in page


def test_the_page_leads_with_the_headline_figures(night, page):
    summary = summarise(night.lake, night.run)
    body = page[page.index("<main>") :]
    assert f"{summary.items.ready} of {summary.items.planned} planned items are ready" in body
    assert f"{svg.number(summary.ttft_ms.cold.p50)} → {svg.number(summary.ttft_ms.warm.p50)} ms" in body
    assert "prefers-color-scheme: dark" in page
    assert body.index("planned items are ready") < body.index("Time to first token") < body.index("Parameters")


def test_every_plot_is_well_formed_and_drawn(night, page):
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawn) == 7, "nothing was tuned, so no plot of a tuning"
    for drawing in drawn:
        assert ET.fromstring(drawing).tag == "svg"


def test_both_files_are_written_and_replaced(night, tmp_path):
    summary = summarise(night.lake, night.run)
    first = write_report(summary, {}, tmp_path / "new" / "run")
    assert write_report(summary, {}, tmp_path / "new" / "run") == first
    assert sorted(path.name for path in first.parent.iterdir()) == ["report.html", "summary.json"]


def test_a_run_without_figures_gives_a_page_that_says_so(lake: Lake, night, tmp_path):
    empty = Lake(lake.uri + "-empty")
    summary = summarise(empty, night.run)
    page = write_report(summary, report_tables(empty, night.run), tmp_path).read_text(encoding="utf-8")
    assert "Nothing was planned yet" in page
    assert "not measured" in page
    assert "<svg" not in page
    assert "None" not in page


def test_text_from_outside_is_escaped(night, tmp_path):
    summary = summarise(night.lake, night.run)
    hostile = "<script>alert(1)</script>"
    prefix = summary.top_prefixes[0].model_copy(update={"tenant": hostile})
    gain = summary.gains[0].model_copy(update={"stratum": hostile, "items": 999})
    update = {"top_prefixes": [prefix], "gains": [gain], "files": [hostile]}
    page = write_report(summary.model_copy(update=update), {}, tmp_path).read_text(encoding="utf-8")
    assert hostile not in page
    assert page.count("&lt;script&gt;") >= 3


def test_verdicts(night):
    summary = summarise(night.lake, night.run)

    def said(planned, ready):
        return verdict(summary.model_copy(update={"items": Items(planned=planned, ready=ready)})).css

    assert said(None, None) == "unknown"
    assert said(10, None) == "poor"
    assert said(0, 0) == "fair"
    assert [said(10, n) for n in (9, 5, 4)] == ["good", "fair", "poor"]


def test_a_run_that_published_nothing_says_why(night):
    summary = summarise(night.lake, night.run)
    publication = Publication(is_published=False, failure_share=0.62, broken_expectations=["rows per arm"])
    said = verdict(summary.model_copy(update={"publication": publication}))
    assert said.css == "poor"
    assert "62%" in said.note
    assert "rows per arm" in said.note


def test_coverage_is_told_where_several_replicas_serve_a_model(night, tmp_path):
    covered = ModelCoverage(ready=1, replicas=2, missing={"b": "gone"}, items={"2 of 2": 40, "1 of 2": 3})
    alone = ModelCoverage(ready=1, replicas=1, missing={}, items={"1 of 1": 40})
    publication = Publication(is_published=True, coverage={"chat": covered, "small": alone})
    summary = summarise(night.lake, night.run).model_copy(update={"publication": publication})
    line = "chat: 1 of 2 replicas are ready; items on 2 of 2: 40, 1 of 2: 3"
    printed = io.StringIO()
    print_summary(summary, Console(file=printed, width=120))
    page = write_report(summary, report_tables(night.lake, night.run), tmp_path).read_text(encoding="utf-8")
    assert line in printed.getvalue()
    assert line in page
    assert "small: 1 of 1" not in page


def test_parameters_come_from_the_model_and_changes_stand_out():
    parameters = GoldenParameters(top_k=500, prefetch_strategy=PrefetchStrategy.STATIC)
    rows = {row["name"]: row for row in parameter_rows(parameters.model_dump(mode="json"))}
    assert list(rows) == list(GoldenParameters.model_fields)
    assert rows["top_k"]["value"] == "500"
    assert rows["top_k"]["range"] == "10–100,000"
    assert rows["top_k"]["is_default"] == "changed"
    assert rows["budget_share"]["is_default"] == ""
    assert rows["prefetch_strategy"]["range"] == "static, dynamic, adaptive"
    assert rows["cache_granularity_tokens"]["value"] == "block size"
    assert all(
        row["unit"] and row["range"] and row["sensitivity"] and row["retune"] and row["doc"] for row in rows.values()
    )


def test_hits_by_minute_follow_the_requests_times(night):
    rows = report_tables(night.lake, night.run)["hits_by_minute"].to_pylist()
    assert [(row["arm"], row["minute"]) for row in rows] == [(arm, n) for arm in ("cold", "warm") for n in range(5)]
    assert all(row["n_requests"] == 48 and row["full_blocks"] == 48 * 20 for row in rows)


def test_the_heat_map_ends_at_as_of_and_holds_one_day(night):
    rows = report_tables(night.lake, night.run)["heat_map"].to_pylist()
    assert {(row["bucket"], row["slot"], row["n_requests"]) for row in rows} == {(7, 95, 1), (7, 94, 5), (63, 0, 2)}


def test_the_console_shows_the_same_figures(night):
    summary = summarise(night.lake, night.run)
    console = Console(file=io.StringIO(), width=140)
    print_summary(summary, console)
    shown = console.file.getvalue()
    assert f"{summary.items.ready} of {summary.items.planned} planned items are ready" in shown
    assert "large-0" in shown
    assert "kv_prefix" in shown
    assert "over capacity" in shown


def test_a_steps_summary_is_printed_flat_and_unparsed():
    console = Console(file=io.StringIO(), width=100)
    print_mapping({"shards": {"large": ["a", "b"]}, "note": "[red]x[/red]", "missing": None, "is_ok": True}, console)
    shown = console.file.getvalue()
    assert "shards.large" in shown
    assert "a, b" in shown
    assert "[red]x[/red]" in shown
    assert "True" in shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1234, "1,234"), (0.123456, "0.123"), (12345678, "12.3 M"), (88.64, "88.6"), (173.2, "173")],
)
def test_numbers_for_people(value, shown):
    assert svg.number(value) == shown


def test_scales_and_ticks():
    scale = svg.Scale(1, 100, 0, 200, is_log=True)
    assert (scale(1), scale(10), scale(100), scale(1000)) == (0, 100, 200, 200)
    assert svg.nice_ticks(0, 103) == [0, 50, 100]
    assert svg.log_ticks(3, 60) == [5, 10, 20, 50]


def test_a_wide_span_of_latencies_gets_a_logarithmic_axis(night):
    summary = summarise(night.lake, night.run)
    table = pa.table({"cold_ms": [100.0, 4000.0], "warm_ms": [2.0, 30.0]})
    assert ">2<" in plots.ttft(table, summary)


def test_a_run_that_was_held_back_leads_with_the_reason_and_the_cost(night, tmp_path):
    places = [
        Cost(where="a", items=2, prefill_tokens=1500, warming_s=0.8, validation_s=1.0, redis_bytes=1880),
        Cost(where="store of large", items=1, prefill_tokens=300, warming_s=4.0, validation_s=0.0, redis_bytes=998_120),
    ]
    held = summarise(night.lake, night.run).model_copy(
        update={"held_back": "a dry run ends with its plan", "cost": places, "ready_in_s": 5.8}
    )
    said = verdict(held)
    assert said.title.endswith("items planned, none warmed")
    assert said.note == (
        "A dry run ends with its plan. It would cost 1,800 tokens to prefill, 1.0 MB in Redis, ready after about 6 s."
    )
    page = write_report(held, report_tables(night.lake, night.run), tmp_path).read_text(encoding="utf-8")
    assert "What the plan costs" in page
    console = Console(file=io.StringIO(), width=160)
    print_summary(held, console)
    assert "store of large" in console.file.getvalue()
