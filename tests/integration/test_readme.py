"""The README's commands do what it says, and its links lead somewhere."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY, Nights

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = "\n".join(re.findall(r"```\n(.*?)```", README, re.DOTALL))
LINES = dict.fromkeys(re.findall(r"^(make [^#\n]*?)\s*(?:#.*)?$", BLOCKS, re.MULTILINE))
RUNS = [
    pytest.param(line, marks=pytest.mark.real_engine if "vllm" in line else ()) for line in LINES if "make run" in line
]


def test_the_two_commands_come_first() -> None:
    assert list(LINES)[:2] == ["make run", "make test"]


@pytest.mark.airflow
@pytest.mark.parametrize("line", RUNS)
def test_run_lines(line: str, nights: Nights) -> None:
    night = nights(line)
    items = night.summary["items"]
    assert items["ready"] + night.refused_by_timing == items["planned"]
    assert items["ready"] > 0
    assert "planned items are ready" in night.printed
    assert (night.out / "run" / "report.html").exists()


@pytest.mark.parametrize("target", ["test", "bench ONLY=heat", "lint"])
def test_other_targets_exist(target: str) -> None:
    done = subprocess.run(["make", "-n", *target.split()], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (REPOSITORY / link).exists()] == []


def test_commands_that_it_names_exist() -> None:
    sentence = re.search(r"The command `warmup` carries out.*?:(.*?)\. `warmup", README, re.DOTALL)
    assert sentence is not None
    named = set(re.findall(r"`([a-z-]+)`", sentence.group(1)))
    done = subprocess.run(
        [Path(REPOSITORY, ".venv/bin/warmup"), "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert named == set(re.findall(r"^│ ([a-z][a-z-]+)  +\S", done.stdout, re.MULTILINE))
