"""Fixtures of the conformance suite: each engine is started once, each test has a client and prompts of its own."""

import os
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.conformance.subjects import KEY, KEY_VARIABLE, Prompts, Subject, double, real
from warmup_tasks.engines.base import Engine


@pytest.fixture(scope="session", params=["double", pytest.param("vllm", marks=pytest.mark.real_engine)])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """The engine under test."""
    os.environ[KEY_VARIABLE] = KEY
    with double(tmp_path_factory.mktemp("double")) if request.param == "double" else real() as running:
        yield running


@pytest.fixture
async def engine(subject: Subject) -> AsyncIterator[Engine]:
    """A client of the engine under test."""
    async with subject.open() as client:
        yield client


@pytest.fixture
async def prompts(engine: Engine, request: pytest.FixtureRequest) -> Prompts:
    """Prompts that only this test sends."""
    return await Prompts.of(engine, request.node.nodeid)


@pytest.fixture
async def http(subject: Subject) -> AsyncIterator[httpx.AsyncClient]:
    """The bare HTTP surface, with the key."""
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=subject.replica.url, headers=headers, timeout=60.0) as client:
        yield client
