"""A small service for the tuning tests: restarts empty its cache."""

import pytest

from tests.support.service_log import BLOCK, service_requests
from warmup_tasks.replay.accesses import Accesses


@pytest.fixture(scope="session")
def service() -> Accesses:
    times, names = service_requests(1500, 2.0, 60)
    return Accesses.of(names, list(times), block_tokens=BLOCK)
