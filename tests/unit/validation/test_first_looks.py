"""A probe must not prove its own work: blocks keep the state of their first look."""

from warmup_tasks.items import Residency
from warmup_tasks.validation.chains import FirstLooks

HEAD = list(range(16))


def test_whole_blocks_only_and_the_expected_ones_only() -> None:
    looks = FirstLooks(4)

    assert len(looks.chain("m", None, HEAD, 16)) == 4
    assert len(looks.chain("m", None, HEAD, 15)) == 3
    assert len(looks.chain("m", None, HEAD, 3)) == 0


def test_a_block_covers_everything_before_it() -> None:
    looks = FirstLooks(4)

    one, other = looks.chain("m", None, HEAD, 16), looks.chain("m", None, [99, *HEAD[1:]], 16)

    assert not set(one) & set(other)


def test_model_and_salt_make_other_blocks() -> None:
    looks = FirstLooks(4)
    chains = [looks.chain(model, salt, HEAD, 4)[0] for model in ("m", "lora") for salt in (None, "s")]

    assert len(set(chains)) == 4


def test_a_chain_stops_at_its_first_miss() -> None:
    looks = FirstLooks(4)
    parent, child = looks.chain("m", None, HEAD, 8), looks.chain("m", None, HEAD, 16)

    looks.saw(parent, 4)

    assert looks.state(child) is Residency.MISS


def test_a_child_that_missed_settles_its_parent() -> None:
    looks = FirstLooks(4)
    parent, child = looks.chain("m", None, HEAD, 8), looks.chain("m", None, HEAD, 16)

    looks.saw(child, 4)

    assert looks.state(parent) is Residency.MISS


def test_what_hit_says_nothing_against_others() -> None:
    looks = FirstLooks(4)
    parent, child = looks.chain("m", None, HEAD, 8), looks.chain("m", None, HEAD, 16)

    looks.saw(parent, 8)

    assert looks.state(child) is None


def test_a_look_that_told_nothing_leaves_its_blocks_unverified() -> None:
    looks = FirstLooks(4)
    chain = looks.chain("m", None, HEAD, 8)

    looks.spoiled(chain)

    assert looks.state(chain) is Residency.UNVERIFIED
