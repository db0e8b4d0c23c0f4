"""A suite is worth what it catches: doubles that do one thing wrong must fail the check that is there for it."""

from pathlib import Path

import pytest

from tests.conformance import checks
from tests.conformance.subjects import KEY, KEY_VARIABLE, Prompts, double
from warmup_tasks.engines.double.faults import Faults


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


async def test_double_that_ignores_salts_is_caught(tmp_path: Path) -> None:
    with double(tmp_path, Faults(ignore_salt=True)) as subject:
        async with subject.open() as engine:
            with pytest.raises(AssertionError):
                await checks.salts_separate(engine, await Prompts.of(engine, "mutation"))


async def test_double_that_forgets_to_evict_is_caught(tmp_path: Path) -> None:
    with double(tmp_path, Faults(forget_to_evict=True)) as subject:
        async with subject.open() as engine:
            with pytest.raises(AssertionError):
                await checks.full_cache_evicts_the_oldest(engine, await Prompts.of(engine, "mutation"))


async def test_double_that_answers_wrongly_from_its_cache_is_caught(tmp_path: Path) -> None:
    with double(tmp_path, Faults(wrong_answers="on_hit")) as subject:
        async with subject.open() as engine:
            prompts = await Prompts.of(engine, "mutation")
            with pytest.raises(AssertionError):
                await checks.warm_answers_equal_cold_ones(engine, prompts, subject)


async def test_sound_double_passes_the_same_checks(tmp_path: Path) -> None:
    with double(tmp_path) as subject:
        async with subject.open() as engine:
            prompts = await Prompts.of(engine, "mutation")
            await checks.salts_separate(engine, prompts)
            await checks.full_cache_evicts_the_oldest(engine, prompts)
            await checks.warm_answers_equal_cold_ones(engine, prompts, subject)
            await checks.reset_empties_the_cache(engine, prompts)
