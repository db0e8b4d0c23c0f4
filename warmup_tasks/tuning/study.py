"""One study: trials proposed, judged, kept in a journal; resumable, within a budget of trials and time.

What a trial is worth is the judge's business. A study knows nothing of traffic, and nothing here talks to an engine.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmup_tasks.tuning.stopping import Plateau, Stop

logger = logging.getLogger(__name__)

Params = dict[str, Any]

_FACTS = "facts"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a trial was found to be worth.

    Attributes:
        value: smaller is better.
        constraints: name → value, kept at 0 or below.
        facts: figures to keep beside it.
    """

    value: float
    constraints: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, float | int | None] = field(default_factory=dict)


Judge = Callable[[Params], Judgement | None]
"""Judges parameters; None: nothing can be said of them, and the trial counts as pruned."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One finished trial; ``value`` is None where it was pruned or failed."""

    number: int
    params: Params
    value: float | None
    is_feasible: bool
    facts: Mapping[str, float | int | None]


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What a study found.

    Attributes:
        name: of the study.
        states: how many trials are in which state, over all calls.
        stale_closed: trials that an interrupted run had left open.
        stop: why it ended.
        trials: all finished trials in order.
        best: the best trial that keeps all constraints; None: there is none.
    """

    name: str
    states: dict[str, int]
    stale_closed: int
    stop: Stop
    trials: tuple[Trial, ...]
    best: Trial | None


def open_study(name: str, sampler: Any, journal: str | Path | None = None) -> Any:
    """Return an Optuna study, resumed where the journal knows it.

    Args:
        name: of the study.
        sampler: proposes.
        journal: file that keeps all trials of all studies; created where absent. None: memory.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = None
    if journal is not None:
        Path(journal).parent.mkdir(parents=True, exist_ok=True)
        storage = _storage(journal)
    return optuna.create_study(study_name=name, storage=storage, sampler=sampler, load_if_exists=True)


def close_family(journal: str | Path, prefix: str) -> int:
    """Fail what interrupted runs left open in all studies of a journal whose names begin so; return how many trials.

    A line that a killed process did not finish writing is cut off first: behind it nothing could be read any more.
    """
    import optuna

    if not Path(journal).is_file():
        return 0
    _cut_unfinished_line(Path(journal))
    storage = _storage(journal)
    names = [name for name in optuna.study.get_all_study_names(storage) if name.startswith(prefix)]
    return sum(close_stale(optuna.load_study(study_name=name, storage=storage)) for name in names)


def close_stale(study: Any) -> int:
    """Fail the trials that an interrupted run left open, and return how many.

    One process at a time works on a study: the caller sees to that.
    """
    from optuna.trial import TrialState

    stale = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for trial in stale:
        study.tell(trial.number, state=TrialState.FAIL)
    if stale:
        logger.warning("study %s: %d trials of an interrupted run closed", study.study_name, len(stale))
    return len(stale)


def run_study(
    study: Any,
    space: Mapping[str, Any],
    judge: Judge,
    *,
    trials: int,
    clock: Callable[[], float],
    time_budget_s: float = float("inf"),
    first: Iterable[Params] = (),
    plateau: Plateau | None = None,
) -> StudyResult:
    """Run trials until there are ``trials`` finished ones in all, the time is over, or a plateau is reached.

    Args:
        study: from :func:`open_study`.
        space: name → distribution.
        judge: called once a trial; what it raises ends the study, with the trial failed.
        trials: finished trials, earlier calls included.
        clock: seconds, never falling.
        time_budget_s: no trial begins later than this after the call.
        first: parameters to try before any proposal, unless the study knows them.
        plateau: stopping rule; None: none.
    """
    begun = clock()
    stale = close_stale(study)
    if len(finished_trials(study)) < trials:
        for params in first:
            study.enqueue_trial(params, skip_if_exists=True)
    while True:
        finished = finished_trials(study)
        stop = _stop(finished, trials, plateau, clock() - begun >= time_budget_s)
        if stop is not None:
            return _result(study, finished, stale, stop)
        _try_one(study, space, judge)


def finished_trials(study: Any) -> tuple[Trial, ...]:
    """Return the completed and pruned trials of a study in order; failed ones were never judged."""
    from optuna.trial import TrialState

    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return tuple(
        Trial(
            number=one.number,
            params=dict(one.params),
            value=one.value if one.state is TrialState.COMPLETE else None,
            is_feasible=one.state is TrialState.COMPLETE and all(value <= 0 for value in one.constraints.values()),
            facts=one.user_attrs.get(_FACTS, {}),
        )
        for one in study.get_trials(deepcopy=False, states=states)
    )


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the best trial that keeps all constraints, the earliest among equals."""
    kept = [(one.value, one.number, one) for one in trials if one.is_feasible and one.value is not None]
    return min(kept)[2] if kept else None


def _storage(journal: str | Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(journal)))


def _cut_unfinished_line(journal: Path) -> None:
    with journal.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


def _stop(finished: Sequence[Trial], trials: int, plateau: Plateau | None, is_late: bool) -> Stop | None:
    if len(finished) >= trials:
        return Stop.TRIALS
    if is_late:
        return Stop.TIME
    values = [one.value if one.is_feasible else None for one in finished]
    return Stop.PLATEAU if plateau is not None and plateau.is_reached(values) else None


def _try_one(study: Any, space: Mapping[str, Any], judge: Judge) -> None:
    from optuna.trial import TrialState

    trial = study.ask(dict(space))
    try:
        judgement = judge(dict(trial.params))
    except BaseException:
        study.tell(trial, state=TrialState.FAIL)
        raise
    if judgement is None:
        study.tell(trial, state=TrialState.PRUNED)
        return
    for name, value in judgement.constraints.items():
        trial.set_constraint(name, float(value))
    trial.set_user_attr(_FACTS, dict(judgement.facts))
    study.tell(trial, float(judgement.value))


def _result(study: Any, finished: tuple[Trial, ...], stale: int, stop: Stop) -> StudyResult:
    states = Counter(one.state.name.lower() for one in study.get_trials(deepcopy=False))
    return StudyResult(study.study_name, dict(sorted(states.items())), stale, stop, finished, best_of(finished))
