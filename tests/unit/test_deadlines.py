"""By when a run must be ready: a local time of day through a clock change, or the forecast peak less the lead time."""

from datetime import UTC, datetime, timedelta

import pytest

from warmup_tasks.deadlines import deadline_of, peak_of
from warmup_tasks.errors import ConfigurationError

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ready_by", "as_of", "expected"),
    [
        ("07:30", AS_OF, datetime(2026, 11, 27, 7, 30, tzinfo=UTC)),
        ("07:30 Europe/Berlin", AS_OF, datetime(2026, 11, 27, 6, 30, tzinfo=UTC)),
        ("01:30", AS_OF, datetime(2026, 11, 28, 1, 30, tzinfo=UTC)),
        ("02:00", AS_OF, datetime(2026, 11, 28, 2, tzinfo=UTC)),
        ("8:00 America/New_York", AS_OF, datetime(2026, 11, 27, 13, tzinfo=UTC)),
        ("07:00 Europe/Berlin", datetime(2026, 10, 24, 23, tzinfo=UTC), datetime(2026, 10, 25, 6, tzinfo=UTC)),
    ],
)
def test_a_time_of_day_is_the_next_one(ready_by: str, as_of: datetime, expected: datetime) -> None:
    found = deadline_of(ready_by, as_of, None, 1800)
    assert found is not None
    assert found.at == expected


@pytest.mark.parametrize("ready_by", ["morning", "25:00", "07:30 Mars/Base", "07:30 ../etc"])
def test_what_is_no_time_is_refused_by_name(ready_by: str) -> None:
    with pytest.raises(ConfigurationError, match="ready_by"):
        deadline_of(ready_by, AS_OF, None, 1800)


def test_without_a_time_the_peak_counts() -> None:
    peak = datetime(2026, 11, 27, 9, tzinfo=UTC)
    found = deadline_of("", AS_OF, peak, 1800)
    assert found is not None
    assert found.at == datetime(2026, 11, 27, 8, 30, tzinfo=UTC)
    assert deadline_of("", AS_OF, None, 1800) is None


def test_the_peak_is_the_busiest_hour_of_the_days_before() -> None:
    days = [AS_OF - timedelta(days=n) for n in (1, 2)]
    hours = {day.replace(hour=hour): n for day in days for hour, n in ((9, 30), (15, 20))}
    assert peak_of(hours, AS_OF, 86_400) == datetime(2026, 11, 27, 9, tzinfo=UTC)
    assert peak_of(hours, AS_OF.replace(hour=10), 86_400) == datetime(2026, 11, 28, 9, tzinfo=UTC)
    assert peak_of(hours, AS_OF.replace(hour=10), 6 * 3600) == datetime(2026, 11, 27, 15, tzinfo=UTC)
    assert peak_of({AS_OF - timedelta(hours=1): 5}, AS_OF, 86_400) is None
    assert peak_of({}, AS_OF, 86_400) is None
