"""Error class → what Airflow does: stop at once, or try again with growing pauses."""

from datetime import timedelta
from typing import Any

import pytest

from tests.dags import nights  # noqa: F401  # names Airflow's home before Airflow is imported
from warmup_tasks import errors


def action(error: Exception) -> Any:
    from warmup_tasks.airflow.retries import RETRY_POLICY

    return RETRY_POLICY.evaluate(error, try_number=1, max_tries=2).action.value


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (errors.GiveUpError("change something"), "fail"),
        (errors.ConfigurationError("a field"), "fail"),
        (errors.ContractError("a shape"), "fail"),
        (errors.MissingMetricError("a metric"), "fail"),
        (errors.RejectItemError("over capacity"), "fail"),
        (errors.RetryLaterError("later"), "default"),
        (ConnectionResetError("by peer"), "default"),
        (KeyError("a bug"), "default"),
    ],
)
def test_what_follows_from_an_error(error: Exception, wanted: str) -> None:
    assert action(error) == wanted


def test_every_error_of_the_library_is_decided_on() -> None:
    from warmup_tasks.airflow.retries import RETRY_POLICY

    def classes(root: type[errors.WarmupError]) -> set[type[errors.WarmupError]]:
        return {root}.union(*(classes(sub) for sub in root.__subclasses__()))

    for kind in classes(errors.WarmupError) - {errors.WarmupError}:
        error = kind.__new__(kind)
        assert any(rule.matches(error) for rule in RETRY_POLICY.rules), kind


def test_the_pause_grows_and_has_an_end() -> None:
    from warmup_tasks.airflow.retries import TASK_DEFAULTS

    assert TASK_DEFAULTS["retry_exponential_backoff"] == 2.0
    assert timedelta(0) < TASK_DEFAULTS["retry_delay"] < TASK_DEFAULTS["max_retry_delay"]
