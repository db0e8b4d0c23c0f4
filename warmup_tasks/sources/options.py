"""What the caller tells the formats because the log does not say it itself.

Options only; each format takes those that it needs.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.sources.hash_prompts import HashPrompts

DEFAULT_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Where a relative clock starts unless the caller says otherwise: fixed, so that reading again changes nothing."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of one reading.

    Attributes:
        epoch: where relative clocks start (None: :data:`DEFAULT_EPOCH`); for time stamps without a year, the earliest
            time they can mean (None: the latest year in which the file, by the time of its last change, can hold them).
        zone: IANA name of the time zone of time stamps without year and zone, as vLLM's log has them.
        hash_prompts: derive prompts for requests that hold block hashes only; None: such requests stay without prompt.

    Raises:
        ConfigurationError: the epoch has no time zone.
    """

    epoch: datetime | None = None
    zone: str = "UTC"
    hash_prompts: HashPrompts | None = None

    def __post_init__(self) -> None:
        if self.epoch is not None and self.epoch.tzinfo is None:
            raise ConfigurationError("epoch: needs a time zone, for instance 2026-11-26T00:00:00+00:00")

    @property
    def clock_start(self) -> datetime:
        """Return where relative clocks start."""
        return self.epoch or DEFAULT_EPOCH
