"""Studies: budget, plateau, resumption, trials that an interrupted run left open, trials that say nothing."""

import itertools
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from optuna.distributions import IntDistribution
from optuna.samplers import RandomSampler

from warmup_tasks.errors import ContractError
from warmup_tasks.tuning.stopping import Plateau, Stop
from warmup_tasks.tuning.study import Judgement, close_family, open_study, run_study

SPACE = {"n": IntDistribution(1, 100)}


def judge(params):
    return Judgement(abs(params["n"] - 40), {"even": float(params["n"] % 2)}, {"n": params["n"]})


def frozen_clock():
    return 0.0


def new(name="s", journal=None, seed=0):
    return open_study(name, RandomSampler(seed=seed), journal)


def test_the_best_is_the_best_that_keeps_the_constraints():
    found = run_study(new(), SPACE, judge, trials=40, clock=frozen_clock)
    assert found.stop is Stop.TRIALS
    assert found.states == {"complete": 40}
    kept = [trial for trial in found.trials if trial.params["n"] % 2 == 0]
    assert found.best is not None
    assert found.best.value == min(trial.value for trial in kept)
    assert found.best.facts == {"n": found.best.params["n"]}


def test_what_is_to_be_tried_first_is_tried_once(tmp_path):
    first = [{"n": 40}, {"n": 7}]
    journal = tmp_path / "deep" / "journal"
    found = run_study(new(journal=journal), SPACE, judge, trials=3, clock=frozen_clock, first=first)
    assert [trial.params["n"] for trial in found.trials][:2] == [40, 7]
    again = run_study(new(journal=journal), SPACE, judge, trials=5, clock=frozen_clock, first=first)
    assert [trial.params["n"] for trial in again.trials].count(40) == 1
    assert len(again.trials) == 5, "earlier trials count"


def test_no_trial_begins_after_the_time_is_over():
    ticks = itertools.count()
    found = run_study(new(), SPACE, judge, trials=1000, clock=lambda: float(next(ticks)), time_budget_s=10)
    assert found.stop is Stop.TIME
    assert 5 <= len(found.trials) <= 10
    assert run_study(new(), SPACE, judge, trials=9, clock=frozen_clock, time_budget_s=0).trials == ()


def test_a_plateau_ends_a_study():
    plateau = Plateau(patience=10, least_gain=0.01, least_trials=15)
    found = run_study(new(), SPACE, lambda params: Judgement(5.0), trials=1000, clock=frozen_clock, plateau=plateau)
    assert found.stop is Stop.PLATEAU
    assert len(found.trials) == 15


@pytest.mark.parametrize(
    ("values", "is_reached"),
    [
        ([5, 4, 3, 2, 1], False),
        ([1, 2, 2, 2, 2], True),
        ([1.0, 2, 2, 0.999, 2], True),
        ([1.0, 2, 2, 0.9, 2], False),
        ([None, None, None, None, None], False),
        ([None, None, None, 3, None], False),
        ([3, None, None, None, None], True),
        ([1, 1, 1], False),
    ],
)
def test_a_plateau_is_no_gain_within_the_patience(values, is_reached):
    assert Plateau(patience=3, least_gain=0.01, least_trials=5).is_reached(values) is is_reached


def test_when_all_trials_say_nothing_there_is_no_best_and_no_error():
    found = run_study(new(), SPACE, lambda params: None, trials=4, clock=frozen_clock)
    assert found.best is None
    assert found.states == {"pruned": 4}


def test_an_error_fails_its_trial_and_is_raised(tmp_path):
    def broken(params):
        raise ContractError("no such partition")

    study = new(journal=tmp_path / "journal")
    with pytest.raises(ContractError):
        run_study(study, SPACE, broken, trials=4, clock=frozen_clock)
    assert [trial.state.name for trial in study.trials] == ["FAIL"]


KILLED = """
    import os, sys
    from optuna.distributions import IntDistribution
    from optuna.samplers import RandomSampler
    from warmup_tasks.tuning.study import Judgement, open_study, run_study

    def judge(params):
        if len(study.trials) == 3:
            with open(sys.argv[1], "ab") as journal:
                journal.write(b'{"op_code": 6, "worker')
            os._exit(9)
        return Judgement(float(params["n"]))

    study = open_study("night-1", RandomSampler(seed=0), sys.argv[1])
    run_study(study, {"n": IntDistribution(1, 100)}, judge, trials=9, clock=lambda: 0.0)
"""


def test_a_worker_killed_in_mid_trial_leaves_a_trial_that_the_next_start_closes(tmp_path: Path):
    journal = tmp_path / "journal"
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(journal)], check=False)
    assert died.returncode == 9
    assert close_family(journal, "night-") == 1, "another night's study, and a line that was not finished"
    assert close_family(journal, "night-") == 0
    found = run_study(new("night-1", journal), SPACE, judge, trials=5, clock=frozen_clock)
    assert found.states == {"complete": 5, "fail": 1}
    assert close_family(tmp_path / "absent", "night-") == 0


def test_a_stale_trial_of_the_same_study_is_closed_and_counted(tmp_path):
    study = new(journal=tmp_path / "journal")
    study.ask(SPACE)
    found = run_study(new(journal=tmp_path / "journal"), SPACE, judge, trials=2, clock=frozen_clock)
    assert found.stale_closed == 1
    assert found.states == {"complete": 2, "fail": 1}
