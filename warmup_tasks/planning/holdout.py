"""The randomised holdout: a small share of prefix subtrees stays cold, so that the effect can be measured (spec 2.5).

Randomised at subtree roots, since a held-out prefix would otherwise be warmed by what stands below it. An answer is
generated through the same cache, so it shares its prompt's arm.
"""

from warmup_tasks.identity import digest
from warmup_tasks.items import Arm

_UNIT = 16**13


def arm_of(seed: int, subtree_root: str | None, holdout_share: float) -> Arm:
    """Return the arm of a subtree; what several subtrees share (root None) is always warm."""
    if subtree_root is None:
        return Arm.WARM
    drawn = int(digest({"holdout": seed, "root": subtree_root})[:13], 16) / _UNIT
    return Arm.HOLDOUT if drawn < holdout_share else Arm.WARM


def assignment_probability(subtree_root: str | None, holdout_share: float) -> float:
    """Return the probability with which an item was to be warmed: the propensity, the same number in either arm."""
    return 1.0 if subtree_root is None else 1.0 - holdout_share
