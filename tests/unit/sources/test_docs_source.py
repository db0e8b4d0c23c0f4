"""The source that the docs show is executed, and held against the same checks as every other."""

import re
from pathlib import Path

import pytest

from tests.support import source_checks
from tests.support.source_checks import LogSample
from warmup_tasks.sources import registry
from warmup_tasks.sources.base import Source

PAGE = (Path(__file__).parents[3] / "docs" / "sources.md").read_text()
SECTION = PAGE.partition("## A new source in under a hundred lines")[2].partition("\n## ")[0]


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    assert found is not None, f"the page has no {language} block"
    return found[1]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Source:
    namespace: dict[str, object] = {"__name__": "docs_example"}
    exec(compile(block("python"), "docs/sources.md", "exec"), namespace)
    (kind,) = [
        value
        for value in namespace.values()
        if isinstance(value, type) and issubclass(value, Source) and value is not Source
    ]
    source = kind()
    assert isinstance(source, Source)
    monkeypatch.setattr(registry, "SOURCES", (*registry.SOURCES, source))
    return source


SAMPLE = LogSample([line.encode() for line in block("json").splitlines()])


def test_the_example_is_short() -> None:
    assert len(block("python").splitlines()) < 100


def test_the_example_passes_the_conformance_suite(example: Source) -> None:
    source_checks.is_recognised(example, SAMPLE)
    source_checks.reads_every_request(example, SAMPLE)
    source_checks.keeps_files_apart(example, SAMPLE)
    source_checks.survives_garbage(example, SAMPLE, [b"\0", b"[1]"])
    for step in range(20):
        source_checks.does_not_mind_order(example, SAMPLE, step)
        source_checks.survives_truncation(example, SAMPLE, step / 20)
        source_checks.tells_no_content(example, SAMPLE, step)
