"""Rules and dashboard: every expression parses and asks for what the agent exports, every panel has its unit."""

import json
import re
from typing import Any

import promql_parser
import pytest
import yaml

from tests.unit.deployment.test_images import DOCKER, ROOT, SERVICES
from warmup_tasks.agent.metrics import AgentMetrics

DASHBOARD: dict[str, Any] = json.loads((ROOT / "include" / "dashboards" / "warmup.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DOCKER / "prometheus" / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
SCRAPES = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
OF_PROMETHEUS = {"up"}


def exported() -> dict[str, set[str]]:
    """Name of each sample that the agent can have → its labels."""
    metrics = AgentMetrics()
    found = {}
    for family in metrics.registry.collect():
        suffix = "_total" if family.type == "counter" else ""
        found[family.name + suffix] = set[str]()
    for collector in metrics.registry._collector_to_names:
        for name in metrics.registry._collector_to_names[collector]:
            if name in found:
                found[name] = set(collector._labelnames)
    return found


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def walk(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
            return
        for name in ("expr", "lhs", "rhs", "vector_selector", "vs", "args", "param"):
            part = getattr(node, name, None)
            for inner in part if isinstance(part, list | tuple) else [part]:
                if inner is not None and not isinstance(inner, str):
                    walk(inner)

    walk(promql_parser.parse(expression.replace("$replica", ".*")))
    return found


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *(rule["expr"] for rule in RULES)])
def test_expressions_ask_for_what_the_agent_exports(expression: str) -> None:
    known = exported()
    asked = selectors(expression)
    assert asked
    for selector in asked:
        assert selector.name in {*known, *OF_PROMETHEUS}, selector.name
        labels = {matcher.name for matcher in selector.matchers.matchers}
        assert labels <= known.get(selector.name, set()) | {"job", "instance"}, selector.name


def test_a_metric_that_nobody_exports_would_be_noticed() -> None:
    assert [selector.name for selector in selectors("rate(nothing_total[5m]) / avg by (a) (more{b='c'})")] == [
        "nothing_total",
        "more",
    ]


def test_legends_and_sums_name_labels_that_there_are() -> None:
    known = exported()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            labels = set().union(*(known.get(selector.name, set()) for selector in selectors(target["expr"])))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]


def test_panels_have_a_unit_a_description_and_a_place_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["description"], panel["title"]
        assert panel["datasource"]["uid"] == "prometheus"
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_success_rate_hit_rate_and_their_trend_are_shown() -> None:
    text = " ".join(EXPRESSIONS)
    assert all(word in text for word in ("warmup_run_is_published[7d]", 'hit_ratio{arm="warm"}[7d]', "warmup_is_ready"))


def test_alerts_say_what_happened_and_what_to_do() -> None:
    assert {rule["alert"] for rule in RULES} >= {
        "WarmupAgentDown",
        "WarmupMarksVoid",
        "WarmupRunUnpublished",
        "WarmupRunMissing",
        "WarmupNotReadyByPeak",
    }
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_prometheus_and_grafana_find_what_the_compose_file_starts() -> None:
    targets = {
        target.partition(":")[0] for job in SCRAPES for group in job["static_configs"] for target in group["targets"]
    }
    names = set(SERVICES) | {
        alias for s in SERVICES.values() for alias in (s.get("networks") or {}).get("default", {}).get("aliases", [])
    }
    assert targets <= names
    source = yaml.safe_load((DOCKER / "grafana" / "datasources.yaml").read_text())["datasources"][0]
    assert source["uid"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"
    folder = yaml.safe_load((DOCKER / "grafana" / "dashboards.yaml").read_text())["providers"][0]["options"]["path"]
    assert f"../include/dashboards:{folder}:ro" in SERVICES["grafana"]["volumes"]
