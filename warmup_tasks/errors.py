"""What can go wrong, by what the caller should do about it.

Here live the error classes of the whole library. No messages, no handling: a class says whether to try again, to stop,
or to reject one item; ``airflow/retries.py`` maps the classes to Airflow's behaviour. Messages never carry prompt text.
"""

from collections.abc import Sequence


class WarmupError(Exception):
    """Base of every error that this library raises on purpose."""


class RetryLaterError(WarmupError):
    """The same call may succeed later (a replica restarts, Redis reconnects): try again with a pause."""


class GiveUpError(WarmupError):
    """No repetition helps; somebody has to change something. The message says what."""


class ConfigurationError(GiveUpError):
    """A file, parameter or environment value is refused; the message names the field and a value that works."""


class ContractError(GiveUpError):
    """Data does not have the schema version or shape that its name promises."""


class MissingMetricError(GiveUpError):
    """An engine does not expose a metric that is needed: a missing metric is an error, never 0."""


class RejectItemError(WarmupError):
    """This one item cannot be warmed; the rest goes on.

    Attributes:
        reason: one of the reasons in :class:`warmup_tasks.items.Reason`.
        detail: numbers and names for people, never prompt text.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


def give_up_if(problems: Sequence[str], headline: str) -> None:
    """Raise one :class:`ConfigurationError` that lists every problem, or return when there is none."""
    if problems:
        raise ConfigurationError(headline + "\n" + "\n".join(f"  - {problem}" for problem in problems))
