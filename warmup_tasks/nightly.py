"""The steps of a nightly run, one function each: the DAG and the command line call these and nothing else.

Each step takes the site and the run, works through the lake and Redis, and returns a small summary (never data, never
prompts). Each is idempotent: a second call with the same arguments leaves the same state. No decision is taken here.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from warmup_tasks.errors import ConfigurationError, RejectItemError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.fleets import fleet_of, record_fleet
from warmup_tasks.items import PromptBody, ReplicaState
from warmup_tasks.runs import Run, time_of
from warmup_tasks.settings import RunPolicy, RunRequest, Site, load_profiles

if TYPE_CHECKING:
    from warmup_tasks.serving.run_figures import RunFigures
    from warmup_tasks.sources.options import ReadOptions
    from warmup_tasks.tuning.replicas import Replicas
    from warmup_tasks.tuning.traffic import NameOf

_log = logging.getLogger(__name__)
Summary = dict[str, Any]
Progress = Callable[[int, int], None]
Tokenize = Callable[[list[tuple[PromptBody, str]]], list[list[int] | RejectItemError]]


def begin(
    lake_uri: str,
    request: RunRequest,
    explicit: Mapping[str, Any] | None = None,
    default_as_of: datetime | None = None,
    policy: RunPolicy | None = None,
) -> Run:
    """Return the run of a request, with the parameters that hold for it now.

    Args:
        lake_uri: holds what earlier nights tuned.
        request: the operator's wishes.
        explicit: golden parameter → value, only those that an operator really set; these win over tuned values.
        default_as_of: see :meth:`Run.of`.
        policy: see :meth:`Run.of`.

    Raises:
        ConfigurationError: a parameter is refused, or there is no time to plan from.
    """
    from warmup_tasks.lake import Lake
    from warmup_tasks.tuning.published import effective_parameters

    as_of = time_of(request, default_as_of)
    parameters, origins = effective_parameters(Lake(lake_uri), as_of, explicit, models=request.models)
    return Run.of(request, policy, parameters, default_as_of=as_of, origins=origins)


def extract(site: Site, run: Run, progress: Progress | None = None) -> Summary:
    """Read the log into the lake's day partitions, and keep this run's account of it under ``extractions``."""
    from warmup_tasks.lake import Lake

    asked = run.request.model_copy(update={"log": run.request.log or site.default_log})
    summary = read_log(site.lake_uri, asked, progress)
    Lake(site.lake_uri).publish("extractions", run.run_id, {}, meta=summary)
    return summary


def read_log(lake_uri: str, asked: RunRequest, progress: Progress | None = None) -> Summary:
    """Read the log that a request names, as it names it, into a lake.

    Raises:
        ConfigurationError: no log is named, or it cannot be read as asked.
    """
    from warmup_tasks.lake import Lake
    from warmup_tasks.sources.extract import extract as read

    if not asked.log:
        raise ConfigurationError("log: name a file, folder or glob with request logs, or set WARMUP_LOG for the site")
    summary = read(
        Lake(lake_uri),
        asked.log,
        asked.log_format,
        default_model=asked.default_model,
        options=read_options(asked),
        progress=progress,
    )
    return summary.model_dump(mode="json")


def read_options(asked: RunRequest) -> "ReadOptions":
    """Return what a request says of its log that the log does not say itself."""
    from warmup_tasks.sources.hash_prompts import HashPrompts
    from warmup_tasks.sources.options import ReadOptions

    derived = None
    if asked.tokens_per_block is not None:
        derived = HashPrompts(asked.tokens_per_block, asked.vocabulary_size, max_tokens=asked.max_prompt_tokens)
    return ReadOptions(epoch=asked.log_epoch, zone=asked.log_zone, hash_prompts=derived)


def profile(site: Site, run: Run, progress: Progress | None = None) -> Summary:
    """Survey the replicas and turn the requests before as_of into demand: heat, prefixes, adapters, prompts.

    A run with ``demand_of`` takes over an earlier run's demand instead.
    """
    from warmup_tasks.demand.profile import profile as profile_demand
    from warmup_tasks.demand.taken_over import take_over
    from warmup_tasks.engines.connect import open_engine
    from warmup_tasks.engines.survey import survey
    from warmup_tasks.errors import RetryLaterError
    from warmup_tasks.lake import Lake
    from warmup_tasks.lake.schemas import to_table

    lake, fleet = Lake(site.lake_uri), record_fleet(site, run)
    found = asyncio.run(
        survey(
            fleet,
            run.run_id,
            _epochs(site, fleet),
            open_engine=open_engine,
            deadline_s=run.policy.request_deadline_s,
            seed=run.request.seed,
            replicas=run.request.replicas,
        )
    )
    if not found.states:
        raise RetryLaterError("no replica answered: " + "; ".join(f"{n}: {p}" for n, p in found.problems.items()))
    lake.publish("replicas", run.run_id, {"replicas": to_table(found.states, ReplicaState)})
    if run.request.demand_of:
        _, summary = take_over(lake, run)
    else:
        tokenize = _tokenizer(fleet, found.states, run)
        _, summary = profile_demand(lake, run, fleet, found.states, tokenize, progress=progress)
    return {"replicas": [state.replica for state in found.states], "problems": found.problems, **summary}


def plan(site: Site, run: Run) -> Summary:
    """Choose and order the items; the summary's ``shards`` maps profile → wave (as text) → shard ids."""
    from warmup_tasks.lake import Lake
    from warmup_tasks.lake.schemas import from_table
    from warmup_tasks.planning.make import make_plan
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.tombstones import TombstoneStore

    lake = Lake(site.lake_uri)
    states = from_table(lake.read(f"replicas/{run.run_id}", "replicas"), ReplicaState)
    with connect(site.redis_url) as redis:
        tombstones = TombstoneStore(redis).item_ids()
    fleet, profiles = fleet_of(site, run), load_profiles(site.profiles_path)
    _, summary = make_plan(lake, run, fleet, profiles, states, tombstones=tombstones)
    return summary


def tune(site: Site, run: Run, progress: Progress | None = None) -> Summary:
    """Tune the parameters of later nights on this night's log, within ``tuning_time_s``; off in a dry run.

    This night's own plan is not touched, so planning and warming need not wait. Whatever goes wrong with a class, its
    last values stay, and its verdict says so; ``tuning_nights/<run>`` holds the whole account.
    """
    from time import monotonic

    from warmup_tasks.lake import Lake
    from warmup_tasks.lake.schemas import from_table
    from warmup_tasks.tuning.nightly import Budget, brief
    from warmup_tasks.tuning.nightly import tune as tune_classes
    from warmup_tasks.tuning.replicas import of_survey

    if run.request.dry_run or not run.request.tuning_time_s:
        return {"classes": {}, "problem": None}
    lake = Lake(site.lake_uri)
    states = from_table(lake.read(f"replicas/{run.run_id}", "replicas"), ReplicaState)
    budget = Budget(run.request.tuning_time_s, monotonic)
    account = tune_classes(lake, run, fleet_of(site, run).served, of_survey(states), budget, progress=progress)
    return brief(account)


def tuning_of_site(
    site: Site, request: RunRequest, explicit: Mapping[str, Any]
) -> "tuple[Run, NameOf, list[Replicas]]":
    """Return what tuning needs beside a lake: a run from now on, the fleet's names, the replicas of the last survey.

    Raises:
        ConfigurationError: no replica was surveyed yet.
    """
    from warmup_tasks.lake import Lake
    from warmup_tasks.lake.schemas import from_table
    from warmup_tasks.tuning.replicas import of_survey

    lake = Lake(site.lake_uri)
    surveyed = max(lake.partitions("replicas"), default=None)
    if surveyed is None:
        raise ConfigurationError("no replica was surveyed yet: `warmup plan` does so; or tune a log with --log")
    states = from_table(lake.read(f"replicas/{surveyed}", "replicas"), ReplicaState)
    run = begin(site.lake_uri, request, explicit, _now())
    return run, fleet_of(site, run).served, of_survey(states)


def replay(site: Site, run: Run, profile: str, arm: str) -> Summary:
    """Replay the first requests after as_of against one profile's replicas, ``arm`` being ``cold`` or ``warm``."""
    from warmup_tasks.engines.connect import open_engine
    from warmup_tasks.lake import Lake
    from warmup_tasks.replay.measured import replay as replay_requests
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.replica_turns import ReplicaTurns

    lake, fleet = Lake(site.lake_uri), fleet_of(site, run)
    with connect(site.redis_url) as redis:
        turns = ReplicaTurns(redis, f"{run.run_id}.{profile}.replay_{arm}", wait_s=run.policy.turn_wait_s)
        _, summary = asyncio.run(replay_requests(lake, run, profile, arm, fleet, open_engine=open_engine, turns=turns))
    return summary


def twins(site: Site, run: Run, profile: str) -> Summary:
    """Ask the cold twins of the sampled items, before anything is warmed (spec 6.1)."""
    from warmup_tasks.engines.connect import open_engine
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving import connect
    from warmup_tasks.validation.twins import run_twins
    from warmup_tasks.warming.paced import Pace

    fleet, lake = fleet_of(site, run), Lake(site.lake_uri)
    pace = Pace.of(lake, run, open_engine)
    with connect(site.redis_url) as redis:
        look = run_twins(lake, run, profile, fleet, open_engine=pace.open_engine, redis=redis, now=_now)
        _, summary = asyncio.run(look)
    return {**summary, **pace.summary()}


def warm(site: Site, run: Run, shard: str) -> Summary:
    """Warm one shard and write its receipts."""
    from warmup_tasks.engines.connect import open_engine
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving import connect
    from warmup_tasks.warming.paced import Pace
    from warmup_tasks.warming.shard import warm_shard

    fleet, lake = fleet_of(site, run), Lake(site.lake_uri)
    pace = Pace.of(lake, run, open_engine, in_steps=True)
    with connect(site.redis_url) as redis:
        _, summary = asyncio.run(
            warm_shard(lake, run, shard, fleet, open_engine=pace.open_engine, redis=redis, now=_now)
        )
    return {**summary, **pace.summary()}


def probe(site: Site, run: Run, profile: str) -> Summary:
    """Probe one profile's replicas, hottest first, and write the evidence (spec 6.4, 6.5)."""
    from warmup_tasks.engines.connect import open_engine
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving import connect
    from warmup_tasks.validation.probes import run_probes
    from warmup_tasks.warming.paced import Pace

    fleet, lake = fleet_of(site, run), Lake(site.lake_uri)
    pace = Pace.of(lake, run, open_engine)
    with connect(site.redis_url) as redis:
        _, summary = asyncio.run(
            run_probes(lake, run, profile, fleet, open_engine=pace.open_engine, redis=redis, now=_now)
        )
    return {**summary, **pace.summary()}


def publish(site: Site, run: Run) -> Summary:
    """Check the evidence as a whole and publish marks and readiness for what passed (spec 6.6)."""
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving import connect
    from warmup_tasks.validation.publish import publish as publish_marks

    with connect(site.redis_url) as redis:
        _, summary = publish_marks(Lake(site.lake_uri), run, fleet_of(site, run), redis=redis, now=_now)
    return summary


def publish_profile(site: Site, run: Run, profile: str) -> Summary:
    """Publish marks and readiness of one profile whose probes have ended, while others still warm."""
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving import connect
    from warmup_tasks.validation.publish import publish_profile as publish_part

    with connect(site.redis_url) as redis:
        return publish_part(Lake(site.lake_uri), run, profile, fleet_of(site, run), redis=redis, now=_now)


def report(
    site: Site, run: Run, folder: str, stages_s: dict[str, float] | None = None, task_count: int | None = None
) -> Summary:
    """Write ``summary.json`` and ``report.html`` into ``folder``, tell whoever watches, and return the summary.

    Args:
        site: the site.
        run: the run.
        folder: created where absent.
        stages_s: seconds per stage, where the caller measured them.
        task_count: task instances of the run, where the caller counted them.
    """
    from warmup_tasks.lake import Lake
    from warmup_tasks.reporting import report_tables, summarise, write_report
    from warmup_tasks.reporting.told import run_figures

    lake = Lake(site.lake_uri)
    summary = summarise(lake, run, stages_s=stages_s, task_count=task_count)
    write_report(summary, report_tables(lake, run), folder)
    _tell(site, run_figures(summary, _now()))
    result: Summary = summary.model_dump(mode="json")
    return result


def _tell(site: Site, figures: "RunFigures") -> None:
    """Leave a run's figures for monitoring; the report stands without it."""
    from warmup_tasks.errors import WarmupError
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.run_figures import RunFiguresStore

    try:
        with connect(site.redis_url) as redis:
            RunFiguresStore(redis).put(figures)
    except WarmupError as error:
        _log.warning("nobody is told of run %s: %s", figures.run_id, error)


def twins_and_waves(site: Site, run: Run) -> Summary:
    """Carry out a whole plan from one process: twins of every profile, then the waves in their order."""
    shards = plan_shards(site, run)
    return {
        "twins": {name: twins(site, run, name) for name in shards},
        "shards": {
            shard: warm(site, run, shard)
            for waves in shards.values()
            for wave in sorted(waves, key=int)
            for shard in waves[wave]
        },
    }


def probes_and_marks(site: Site, run: Run) -> Summary:
    """Probe every profile of a plan from one process and publish."""
    probes = {name: probe(site, run, name) for name in plan_shards(site, run)}
    return {"probes": probes, "publish": publish(site, run)}


def plan_shards(site: Site, run: Run) -> dict[str, dict[str, list[str]]]:
    """Return the shards of a run's plan: profile → wave (as text) → shard ids.

    Raises:
        ContractError: the run has no plan yet.
    """
    from warmup_tasks.lake import Lake

    shards: dict[str, dict[str, list[str]]] = Lake(site.lake_uri).meta(f"plan/{run.run_id}")["shards"]
    return shards


def _epochs(site: Site, fleet: FleetFile) -> dict[str, str | None]:
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.epochs import EpochStore

    names = [replica.name for replica in fleet.replicas]
    with connect(site.redis_url) as redis:
        known = EpochStore(redis).read_many(names)
    return {name: record.epoch if record else None for name, record in zip(names, known, strict=True)}


def _tokenizer(fleet: FleetFile, states: list[ReplicaState], run: Run) -> Tokenize:
    """Return a callable that asks, for each prompt, the first surveyed replica that serves its model."""
    from warmup_tasks.engines.connect import open_engine
    from warmup_tasks.engines.tokens import tokenize_many

    async def ask(replica: str, prompts: list[tuple[PromptBody, str]]) -> list[list[int] | RejectItemError]:
        async with open_engine(fleet.replica(replica)) as engine:
            return await tokenize_many(engine, prompts, deadline_s=run.policy.request_deadline_s)

    def tokenize(prompts: list[tuple[PromptBody, str]]) -> list[list[int] | RejectItemError]:
        replica_of = {state.model: state.replica for state in reversed(states)}
        answers: list[list[int] | RejectItemError] = [[] for _ in prompts]
        for model in dict.fromkeys(model for _, model in prompts):
            indices = [index for index, (_, asked) in enumerate(prompts) if asked == model]
            found = asyncio.run(ask(replica_of[model], [prompts[index] for index in indices]))
            for index, tokens in zip(indices, found, strict=True):
                answers[index] = tokens
        return answers

    return tokenize


def _now() -> datetime:
    return datetime.now(UTC)
