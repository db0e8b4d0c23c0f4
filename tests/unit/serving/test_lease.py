import pytest

from warmup_tasks.errors import RetryLaterError
from warmup_tasks.identity import lease_key
from warmup_tasks.serving.lease import Leases


@pytest.fixture
def leases(redis_client):
    return Leases(redis_client)


def test_one_holder_at_a_time(leases, redis_client):
    mine = leases.acquire("gpu", "me", 30)
    assert leases.acquire("gpu", "you", 30) is None
    assert leases.acquire("other", "you", 30) is not None
    assert 0 < redis_client.ttl(lease_key("gpu")) <= 30
    assert leases.release(mine)
    assert leases.acquire("gpu", "you", 30).token > mine.token


def test_the_holder_gets_its_own_lease_again(leases):
    assert leases.acquire("gpu", "me", 30) == leases.acquire("gpu", "me", 30)


def test_a_lost_lease_can_neither_be_renewed_nor_released(leases, redis_client):
    late = leases.acquire("gpu", "me", 30)
    redis_client.delete(lease_key("gpu"))  # as its TTL does
    assert not leases.renew(late, 30)
    present = leases.acquire("gpu", "you", 30)
    assert not leases.release(late)
    assert not leases.renew(late, 30)
    assert leases.renew(present, 60)
    assert redis_client.ttl(lease_key("gpu")) > 30
    again = (leases.release(present), leases.acquire("gpu", "me", 30))[1]
    assert late.token < present.token < again.token
    assert not leases.release(late)  # the same holder, an older grant


def test_tokens_grow_though_everything_is_forgotten(leases, redis_client):
    first = leases.acquire("gpu", "me", 30)
    redis_client.flushall()
    assert leases.acquire("gpu", "me", 30).token > first.token


def test_waiting_has_a_deadline(leases):
    leases.acquire("gpu", "me", 30)
    with pytest.raises(RetryLaterError, match="'gpu'"), leases.held("gpu", "you", ttl_s=30, deadline_s=0):
        pass


def test_a_failed_block_gives_the_lease_back(leases):
    with pytest.raises(ZeroDivisionError), leases.held("gpu", "me", ttl_s=30, deadline_s=0):
        _ = 1 / 0
    assert leases.acquire("gpu", "you", 30) is not None
