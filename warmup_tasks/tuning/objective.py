"""The judge of passive triggers: the objective of spec 2.3 under its constraints, for any sampler."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.signals import Conditions
from warmup_tasks.tuning.evaluation import Evaluation, Evaluator
from warmup_tasks.tuning.study import Judgement, Params

FALSE_SHARE_CAP = 0.052
"""Of the firings that loaded anything (spec 2.3)."""


class TriggerJudge:
    """Judges parameters against the fixed threshold on the same scenarios.

    Args:
        evaluator: plays settings.
        base: parameters outside the search space, and the fixed threshold: what a trial is compared with.
        conditions: further signals.
        false_share_cap: constraint on the share of false triggers.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        base: GoldenParameters,
        conditions: Conditions | None = None,
        false_share_cap: float = FALSE_SHARE_CAP,
    ) -> None:
        self.evaluator, self._base, self._conditions = evaluator, base, conditions
        self._cap = false_share_cap
        self.fixed = evaluator.evaluate(base, conditions)
        self.base_value = self.fixed.objective(self.fixed)

    def parameters(self, params: Mapping[str, Any]) -> GoldenParameters:
        """Return the base with a trial's values set."""
        return GoldenParameters.model_validate({**self._base.model_dump(), **params})

    def __call__(self, params: Params) -> Judgement:
        """Return value, constraints and facts of one trial."""
        return self.judge(self.evaluator.evaluate(self.parameters(params), self._conditions))

    def judge(self, found: Evaluation) -> Judgement:
        """Return the judgement of an evaluation.

        The cap on the false share is kept with a margin, by the share of doubtful firings: firings that are just not
        false promise little for later traffic. And a setting must see no fewer surges than the fixed threshold.
        """
        return Judgement(
            value=found.objective(self.fixed),
            constraints={
                "false_share": (found.account.doubtful_share or 0.0) - self._cap,
                "recall": (self.fixed.account.recall or 0.0) - (found.account.recall or 0.0),
            },
            facts=facts(found),
        )


def facts(found: Evaluation) -> dict[str, float | int | None]:
    """Return the figures of an evaluation for tables: times in ms unless the name says otherwise."""
    account = found.account
    return {
        "p50_ms": found.p50_ms,
        "p95_ms": found.p95_ms,
        "mean_ms": found.mean_ms,
        "firings": account.firings,
        "false_firings": account.false_firings,
        "false_share": account.false_share,
        "surges": account.surges,
        "preceded_surges": account.preceded_surges,
        "recall": account.recall,
        "spent_tokens": account.spent_tokens,
        "saved_tokens": account.saved_tokens,
        "cost": found.cost,
        "warm_up_latency_s": median(account.latencies_s) if account.latencies_s else None,
        "computed_tokens": found.computed_tokens,
    }
