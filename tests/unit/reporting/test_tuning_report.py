"""What a run's tuning looks like on the page, on the console and in the summary; and that plots are well formed."""

import io
import json
import re
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.reporting import report_tables, summarise, tuning_plots, write_report
from warmup_tasks.reporting.console import print_tuning
from warmup_tasks.reporting.report import write_tuning
from warmup_tasks.reporting.tuning import told, tuning_of, tuning_rows
from warmup_tasks.runs import Origins, Run
from warmup_tasks.tuning.class_night import ClassResult, Verdict
from warmup_tasks.tuning.nightly import _tables
from warmup_tasks.tuning.sensitivity import CurvePoint, Sensitivity
from warmup_tasks.tuning.study import Trial

NAME = "m.base.chat"
LAST = {"trigger_threshold_ms": 500.0, "prefetch_strategy": "adaptive", "top_k": 200}
BEST = {"trigger_threshold_ms": 85.5, "prefetch_strategy": "static", "top_k": 200}


def facts_of(p95_ms: float, false_share: float | None, recall: float | None = 1.0) -> dict:
    return {"p95_ms": p95_ms, "false_share": false_share, "recall": recall, "firings": 3}


def account(**changes) -> dict:
    facts = {
        "verdict": str(Verdict.TUNED), "requests": 900, "ref": f"tuning/{NAME}@000001", "suits_plan": True,
        "values": BEST, "last": LAST, "best": BEST, "trials": {"complete": 11, "pruned": 1},
        "total_effects": {"trigger_threshold_ms": 0.9, "prefetch_strategy": 0.2, "top_k": 0.0},
        "fixed": facts_of(120.0, 0.2),
        "later": {
            "best": {"objective": 0.51, **facts_of(60.0, 0.0)}, "last": {"objective": 1.0, **facts_of(118.0, None)},
        },
    }  # fmt: skip
    return {"classes": {NAME: {**facts, **changes}}, "problem": None}


@pytest.fixture
def tuned(night):
    """The night with an account of its tuning, as the step leaves it."""
    trials = [Trial(n, {"top_k": 200}, 1.0 - n / 20, n % 3 > 0, facts_of(120 - 5 * n, 0.02 * n)) for n in range(12)] + [
        Trial(12, {"top_k": 9}, None, False, {})
    ]
    curves = [CurvePoint("trigger_threshold_ms", value, value / 500, 0.1) for value in (20.0, 100.0, 500.0, 5000.0)]
    curves += [CurvePoint("prefetch_strategy", value, 0.7, 0.2) for value in ("static", "dynamic", "adaptive")]
    tables = _tables({NAME: ClassResult({}, tuple(trials), Sensitivity({}, curves))})
    night.lake.publish("tuning_nights", night.run.run_id, tables, account())
    return night


def test_the_summary_says_what_became_of_each_class(tuned):
    found = summarise(tuned.lake, tuned.run).tuning
    assert found.state == "done"
    one = found.classes[0]
    assert (one.traffic_class, one.trials, one.objective_last, one.objective_best) == (NAME, 12, 1.0, 0.51)
    assert (one.false_share_last, one.false_share_best, one.recall_best) == (None, 0.0, 1.0)
    assert told(found) == "1 of 1 traffic classes have new values; runs after this one take them."
    row = tuning_rows(found)[0]
    assert (row["p95"], row["false_share"], row["recall"]) == ("118 → 60 ms", "– → 0%", "100% → 100%")


def test_a_run_without_tuning_says_why(night):
    assert summarise(night.lake, night.run).tuning.state == "unfinished"
    off = night.run.model_copy(update={"request": night.run.request.model_copy(update={"tuning_time_s": 0})})
    assert summarise(night.lake, off).tuning.state == "off"
    assert "last values stay" in told(summarise(night.lake, night.run).tuning)


def test_a_failure_is_told_with_what_stays():
    failed = tuning_of(account(verdict=str(Verdict.FAILED), problem="RuntimeError", values=LAST, best=None))
    assert told(failed) == "The last values stay, for every traffic class."
    assert tuning_rows(failed)[0]["verdict"] == "last values stay: tuning failed (RuntimeError)"
    refused = tuning_of({"classes": {}, "problem": "ConfigurationError: another process is tuning"})
    assert "another process is tuning" in told(refused)


def test_the_page_draws_the_tuning_and_names_every_origin(tuned, tmp_path):
    origins = Origins(tuning_ref="r", tuned={"top_k": tuned.run.as_of}, set_by_operator=("budget_share",))
    run = tuned.run.model_copy(update={"origins": origins})
    summary = summarise(tuned.lake, run)
    page = write_report(summary, report_tables(tuned.lake, run), tmp_path / "run").read_text(encoding="utf-8")
    section = page[page.index("Tuning for later runs") : page.index("<h2>Parameters</h2>")]
    drawn = re.findall(r"<svg.*?</svg>", section, re.DOTALL)
    assert len(drawn) == 4
    for drawing in drawn:
        assert ET.fromstring(drawing).tag == "svg"
    assert summary.parameter_origins["top_k"] == "tuned on 2026-11-27"
    assert list(summary.parameter_origins) == list(GoldenParameters.model_fields)
    table = page[page.index("<h2>Parameters</h2>") :]
    for origin in ("tuned on 2026-11-27", "set by the operator", "default"):
        assert f'<td class="soft">{origin}</td>' in table


def test_every_trial_is_a_dot_and_the_frontier_falls():
    tried = [facts_of(100, 0.0), facts_of(80, 0.1), facts_of(90, 0.2), facts_of(50, 0.4, recall=None)]
    trials = [
        {"number": number, "value": 1.0, "is_feasible": True, "facts": json.dumps(facts)}
        for number, facts in enumerate(tried)
    ]
    drawing = tuning_plots.frontier(trials, {"fixed": {"p95_ms": 110, "false_share": None}}, 0.052)
    assert drawing.count('class="trial"') == 4
    path = re.search(r'd="M([^"]*)" class="curve ready"', drawing)
    assert path is not None
    heights = [float(point.split()[1]) for point in path[1].split("L")]
    assert heights == sorted(heights), "down the page is a lower P95"
    assert len(set(heights)) == 3, "the trial with 90 ms at 20 % lies above the frontier"
    assert "fixed 110 ms" in drawing


def test_without_figures_there_is_no_plot():
    pruned = [{"number": 0, "value": None, "is_feasible": False, "facts": "{}"}]
    assert tuning_plots.history(pruned) == tuning_plots.frontier(pruned, {}, 0.05) == ""
    assert tuning_plots.effects({}) == tuning_plots.curves([], {}, {}) == ""


def test_the_console_and_a_page_of_its_own_show_the_same(tmp_path):
    console = Console(file=io.StringIO(), width=110)
    print_tuning(tuning_of(account()), console)
    said = console.file.getvalue()
    for words in (NAME, "1.000 → 0.510", "tuned values published", "trigger_threshold_ms", "85.5", "90%"):
        assert words in said, words
    page = write_tuning(tuning_of(account()), {}, tmp_path / "deep" / "tuning.html").read_text(encoding="utf-8")
    assert "1.000 → 0.510" in page


def test_a_run_keeps_its_origins_on_the_way(night):
    run = night.run.model_copy(update={"origins": Origins(tuning_ref="r", tuned={"top_k": night.run.as_of})})
    assert Run.model_validate_json(run.model_dump_json()) == run
