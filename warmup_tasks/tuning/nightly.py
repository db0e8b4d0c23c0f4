"""The tuning step of a night: every traffic class in turn within one budget, and the account of it in the lake.

Whatever goes wrong with a class, its last values stay and its verdict says so: tuning never fails a run.
"""

import fcntl
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from warmup_tasks.errors import ConfigurationError, WarmupError
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.tuning.class_night import Budget, ClassNight, ClassResult, MakeJudge, Verdict
from warmup_tasks.tuning.replicas import Replicas, serving
from warmup_tasks.tuning.traffic import NameOf, TrafficClass, traffic_classes

__all__ = ["Budget", "Verdict", "brief", "tune"]

logger = logging.getLogger(__name__)

Summary = dict[str, Any]
Progress = Callable[[int, int], None]

DATASET = "tuning_nights"

TRIALS = pa.schema(
    [
        ("traffic_class", pa.string()),
        ("number", pa.int64()),
        ("params", pa.string()),  # JSON
        ("value", pa.float64()),  # the objective; null: pruned
        ("is_feasible", pa.bool_()),
        ("facts", pa.string()),  # JSON
    ]
)
"""One row a finished trial. Grain: traffic_class, number."""

CURVES = pa.schema(
    [
        ("traffic_class", pa.string()),
        ("parameter", pa.string()),
        ("value", pa.string()),  # JSON
        ("objective", pa.float64()),
        ("deviation", pa.float64()),
    ]
)
"""The predicted objective over one parameter, the others as in the trials. Grain: traffic_class, parameter, value."""


def tune(
    lake: Lake,
    run: Run,
    name_of: NameOf,
    replicas: Sequence[Replicas],
    budget: Budget,
    *,
    journal: str | Path | None = None,
    slo_ms: float = 1000.0,
    judge_of: MakeJudge = lambda judge: judge,
    progress: Progress | None = None,
) -> Summary:
    """Tune every traffic class that has enough requests before ``as_of``, and publish what did better.

    Args:
        lake: holds ``requests/<day>`` and earlier nights' ``tuning/<class>.<as_of>``; receives this
            night's, and ``tuning_nights/<run>``.
        run: as_of, lookback, model filter, seed.
        name_of: the served name of a logged model and adapter; None: nobody serves it.
        replicas: who serves which model.
        budget: of time and trials.
        journal: file of all studies' trials; None: beside a local lake, else memory.
        slo_ms: of the time to first token; an evaluation constant.
        judge_of: wraps the judge, for tests.
        progress: called with (trials done, trials at most).

    Returns:
        ``classes``: class → verdict, values, figures of the study and of the acceptance; ``journal``; ``problem``:
        why nothing could be tuned at all, else None.
    """
    path = Path(journal) if journal is not None else _beside(lake, run)
    account: Summary = {"classes": {}, "problem": None}
    results: dict[str, ClassResult] = {}
    try:
        with _alone(path):
            results = _tune_all(lake, run, name_of, replicas, budget, path, slo_ms, judge_of, progress)
    except Exception as error:  # noqa: BLE001 - tuning never fails a run
        account["problem"] = _problem(error)
    account["classes"] = {name: result.facts for name, result in results.items()}
    lake.publish(DATASET, run.run_id, _tables(results), account)
    return {**account, "journal": str(path) if path is not None else None}


def brief(account: Summary) -> Summary:
    """Return what of an account may travel through XCom: a verdict a class."""
    verdicts = {name: facts["verdict"] for name, facts in account["classes"].items()}
    return {"classes": dict(list(verdicts.items())[:100]), "problem": account["problem"]}


def _tune_all(
    lake: Lake,
    run: Run,
    name_of: NameOf,
    replicas: Sequence[Replicas],
    budget: Budget,
    journal: Path | None,
    slo_ms: float,
    judge_of: MakeJudge,
    progress: Progress | None,
) -> dict[str, ClassResult]:
    since = run.as_of - timedelta(seconds=run.policy.lookback_s)
    classes = [
        one
        for one in traffic_classes(lake, name_of, since, run.as_of)
        if serving(replicas, one.model) and (not run.request.models or one.model in run.request.models)
    ]
    counted = _Counted(progress, len(classes) * budget.trials)
    begun, left = budget.clock(), sum(one.requests for one in classes)
    results: dict[str, ClassResult] = {}
    for place, traffic in enumerate(classes):
        time_s = (budget.time_s - (budget.clock() - begun)) * traffic.requests / max(1, left)
        left -= traffic.requests
        own = serving(replicas, traffic.model)
        if own is None:
            continue
        share = traffic.requests / sum(one.requests for one in classes if one.model == traffic.model)
        night = ClassNight(lake, run, traffic, own, share, slo_ms)
        results[traffic.name] = _tune_one(night, traffic, journal, budget, time_s, counted.wrap(judge_of))
        counted.reach((place + 1) * budget.trials)
    return results


def _tune_one(
    night: ClassNight, traffic: TrafficClass, journal: Path | None, budget: Budget, time_s: float, judge_of: MakeJudge
) -> ClassResult:
    try:
        result = night.tune(journal, budget, time_s, judge_of)
    except Exception as error:  # noqa: BLE001 - one class's failure leaves the others theirs
        result = night.kept(Verdict.FAILED, problem=_problem(error))
    logger.info("tuning %s: %s", traffic.name, result.facts["verdict"])
    return result


def _problem(error: Exception) -> str:
    """Return what may be told of an error: other libraries' messages may hold what stood in a request."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, WarmupError) else name


class _Counted:
    """Tells how many trials are done, over all classes."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def wrap(self, judge_of: MakeJudge) -> MakeJudge:
        """Return the maker of judges that count."""

        def make(judge: Any) -> Any:
            inner = judge_of(judge)

            def judged(params: dict[str, Any]) -> Any:
                found = inner(params)
                self.reach(self._done + 1)
                return found

            return judged

        return make

    def reach(self, done: int) -> None:
        """Tell that so many are done."""
        self._done = done
        if self._progress is not None:
            self._progress(min(done, self._total), self._total)


def _tables(results: dict[str, ClassResult]) -> dict[str, pa.Table]:
    trials = [
        {
            "traffic_class": name,
            "number": one.number,
            "params": _json(one.params),
            "value": one.value,
            "is_feasible": one.is_feasible,
            "facts": _json(dict(one.facts)),
        }
        for name, result in results.items()
        for one in result.trials
    ]
    curves = [
        {
            "traffic_class": name,
            "parameter": point.parameter,
            "value": _json(point.value),
            "objective": point.objective,
            "deviation": point.deviation,
        }
        for name, result in results.items()
        for point in result.told.curves
    ]
    return {
        "trials": pa.Table.from_pylist(trials, schema=TRIALS),
        "curves": pa.Table.from_pylist(curves, schema=CURVES),
    }


@contextmanager
def _alone(journal: Path | None) -> Iterator[None]:
    """Hold the journal for this process alone: two would close each other's trials.

    Raises:
        ConfigurationError: another process holds it.
    """
    if journal is None:
        yield
        return
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.with_name(f"{journal.name}.held").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another process is tuning with {journal}: wait for it, or end it") from None
        yield


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _beside(lake: Lake, run: Run) -> Path | None:
    """Return the month's journal beside a local lake; object storage takes no journal."""
    return Path(lake.uri) / "journals" / f"tuning-{run.as_of:%Y-%m}.journal" if "://" not in lake.uri else None
