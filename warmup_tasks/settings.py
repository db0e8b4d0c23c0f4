"""What an installation looks like: hardware profiles, the site's addresses, one run's wishes and limits.

Here live frozen models and how configuration files are read as such; the fleet has a file of its own,
``fleet_file.py``. The profiles file is the only one that a DAG reads at parse time, so this module imports nothing
heavy. Secrets never stand in these files: they come from Airflow connections or from the environment.
"""

import os
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import ItemKind
from warmup_tasks.parameters import explain
from warmup_tasks.resources import include_path

ModelT = TypeVar("ModelT", bound=BaseModel)
IdentityPart = Literal[
    "weights_revision", "dtype", "quantization", "tokenizer_revision", "chat_template_digest", "adapter_version"
]


class Strict(BaseModel):
    """Base of all configuration: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class HardwareProfile(Strict):
    """A class of replicas: its Airflow queue and what its hardware does (units in the names)."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", description="Short name, used in task ids and metrics.")
    queue: str = Field(min_length=1, description="Airflow queue whose workers can reach these replicas.")
    bandwidth_gb_per_s: float = Field(gt=0)
    latency_ns: float = Field(gt=0)
    compute_tflops: float = Field(ge=0, description="Dense bf16.")
    pod_template: str | None = Field(
        None, description="Pod template of its tasks under the Kubernetes executor; relative to the profiles file."
    )


class ProfilesFile(Strict):
    """``include/profiles.yaml``: gives the DAGs their shape."""

    schema_version: Literal[1] = 1
    profiles: list[HardwareProfile] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique(self) -> Self:
        names = [profile.name for profile in self.profiles]
        if len(set(names)) != len(names):
            raise ValueError(f"profile names must be unique, got {names}")
        return self


class RunPolicy(Strict):
    """Evaluation constants and limits of a run; never tuned (spec, first paragraph)."""

    lookback_s: int = Field(3 * 86_400, ge=60, description="History that a plan may see, in s before as_of.")
    horizon_s: int = Field(86_400, ge=60, description="[as_of, as_of + horizon) is what a plan is made for.")
    holdout_share: float = Field(0.05, ge=0, le=0.5, description="Subtree roots left cold to measure the effect.")
    twins_per_stratum: int = Field(20, ge=1, description="Cold twins per replica × tenant × length band.")
    max_twins_per_replica: int = Field(200, ge=1)
    answer_tokens: int = Field(16, ge=1)
    response_tokens: int = Field(64, ge=1, description="A default response is generated up to this length.")
    logprob_tolerance: float = Field(0.05, gt=0)
    canary_output_tokens: int = Field(64, ge=1)
    max_failure_share: float = Field(0.5, ge=0, le=1, description="Above it the run publishes nothing new.")
    min_ready_share: float = Field(0.5, ge=0, le=1, description="Of a replica's planned items, to call it ready.")
    mark_life_s: int = Field(8 * 3600, ge=60, description="Upper limit of a mark's life.")
    request_deadline_s: float = Field(120.0, gt=0)
    turn_wait_s: float = Field(1800.0, ge=0, description="For a replica that another task works on, then try later.")
    is_paced: bool = Field(False, description="Spare live traffic: prefill within a cap a minute, in small steps.")
    slo_ttft_ms: float = Field(1000.0, gt=0, description="P99 of live traffic; above it a paced run stands still.")
    target_ttft_ms: float = Field(500.0, gt=0, description="P99 of live traffic up to which a paced run has its base.")
    pace_share: float = Field(0.5, gt=0, le=1, description="The base: so much of what the replica can prefill.")
    pace_step_tokens: int = Field(256, ge=1, description="A prefix goes in such steps beside live traffic.")
    pace_wait_s: float = Field(900.0, gt=0, description="Without room for so long an item is given up.")
    min_uses: int = Field(2, ge=1, description="A prefix or prompt seen fewer times is not worth warming.")
    required_evidence: list[IdentityPart] = Field(
        ["weights_revision", "adapter_version"],
        description="Identity fields that must be observed, or reported without contradiction; others are shown.",
    )

    @model_validator(mode="after")
    def _target_below_slo(self) -> Self:
        if self.target_ttft_ms >= self.slo_ttft_ms:
            raise ValueError(f"target_ttft_ms must stay below slo_ttft_ms ({self.slo_ttft_ms:g})")
        return self


class RunRequest(Strict):
    """What an operator asks of one run; the Airflow Params form is generated from it."""

    as_of: datetime | None = Field(
        None, description="Plan for the time from here on. Empty: the run's data interval end."
    )
    log: str = Field("", description="File, folder or glob with request logs. Empty: the site's default.")
    log_format: str = Field("auto", description="Name of a log format, or auto.")
    default_model: str | None = Field(None, description="Stands in where the log names no model.")
    log_epoch: datetime | None = Field(
        None, description="Where the log's relative clock starts; empty: 2026-01-01 UTC."
    )
    log_zone: str = Field("UTC", description="Time zone of time stamps that have none.")
    tokens_per_block: int | None = Field(
        None, ge=1, description="For traces of block hashes: derive prompts with so many tokens a block; empty: none."
    )
    vocabulary_size: int = Field(32_000, ge=16, description="Of the model that gets derived prompts.")
    max_prompt_tokens: int | None = Field(None, ge=1, description="Longer derived prompts are counted, not made.")
    models: list[str] = Field([], description="Only these models; empty means all.")
    tenants: list[str] = Field([], description="Only these tenants; empty means all.")
    replicas: list[str] = Field([], description="Only these replicas; empty means all.")
    kinds: list[ItemKind] = Field([], description="Only items of these kinds and what they need; empty means all.")
    demand_of: str | None = Field(
        None,
        min_length=1,
        description="Take over the demand of this run, or of the newest one; empty: work it out from the log.",
    )
    measure_window_s: int = Field(
        0, ge=0, le=3600, description="Replay this many seconds after as_of, cold and warm; 0 is off."
    )
    max_twins: int | None = Field(
        None, ge=1, description="Ask at most so many cold twins on a replica; empty: what the policy says."
    )
    max_answers: int | None = Field(
        None, ge=0, description="Generate at most so many default answers and QA pairs, best first; empty: all planned."
    )
    tuning_time_s: int = Field(
        300, ge=0, le=14_400, description="Time for tuning the parameters that later nights take, in s; 0 is off."
    )
    ready_by: str = Field(
        "",
        pattern=r"^(([01]?\d|2[0-3]):[0-5]\d( +[A-Za-z0-9_+/-]+)?)?$",
        description="Be ready by this time of day, 07:30 Europe/Berlin. Empty: lead_time_s before the forecast peak.",
    )
    is_red_when_late: bool = Field(False, description="Make the run red when it is not ready in time; else it warns.")
    dry_run: bool = Field(False, description="Plan only: show what would be warmed and what it costs.")
    seed: int = Field(7, ge=0)

    @field_validator("log")
    @classmethod
    def _holds_no_password(cls, log: str) -> str:
        login, separator, _ = log.partition("://")[2].partition("/")[0].rpartition("@")
        if separator and ":" in login:
            raise ValueError("leave the password out of the address: set PGPASSWORD, or the store's own variables")
        return log


class Site(Strict):
    """The addresses that a process needs; read from the environment or from Airflow connections."""

    lake_uri: str
    redis_url: str
    fleet_path: str
    profiles_path: str
    default_log: str = ""
    report_folder: str = ""

    @classmethod
    def from_environment(cls, env: dict[str, str] | None = None) -> Self:
        """Return the site from ``WARMUP_{LAKE,REDIS_URL,FLEET}`` and, optional, ``WARMUP_{PROFILES,LOG,REPORT}``.

        Raises:
            ConfigurationError: a variable that has no default is missing; the message names it.
        """
        values = dict(os.environ) if env is None else env
        missing = [name for name in ("WARMUP_LAKE", "WARMUP_REDIS_URL", "WARMUP_FLEET") if not values.get(name)]
        if missing:
            raise ConfigurationError(
                f"set {', '.join(missing)}: the lake's URI, the Redis URL and the fleet file "
                "(`warmup run --keep` prints a working set on one machine)"
            )
        return cls(
            lake_uri=values["WARMUP_LAKE"],
            redis_url=values["WARMUP_REDIS_URL"],
            fleet_path=values["WARMUP_FLEET"],
            profiles_path=values.get("WARMUP_PROFILES") or str(include_path("profiles.yaml")),
            default_log=values.get("WARMUP_LOG", ""),
            report_folder=values.get("WARMUP_REPORT", ""),
        )

    def to_environment(self) -> dict[str, str]:
        """Return the variables from which :meth:`from_environment` reads this site."""
        return {
            "WARMUP_LAKE": self.lake_uri,
            "WARMUP_REDIS_URL": self.redis_url,
            "WARMUP_FLEET": self.fleet_path,
            "WARMUP_PROFILES": self.profiles_path,
            "WARMUP_LOG": self.default_log,
            "WARMUP_REPORT": self.report_folder,
        }


def load_yaml(path: str | Path, model: type[ModelT]) -> ModelT:
    """Return a configuration file as its model, or raise ``ConfigurationError`` naming file, field and problem."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read as text: {type(error).__name__}") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not YAML: {error}") from None
    return validate(data, model, str(path))


def validate(data: Any, model: type[ModelT], what: str) -> ModelT:
    """Return ``data`` as ``model``, or raise ``ConfigurationError`` naming each refused field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigurationError(explain(error, what)) from None


def load_profiles(path: str | Path | None = None) -> list[HardwareProfile]:
    """Return the hardware profiles; the default path is ``WARMUP_PROFILES`` or the file that the package brings."""
    chosen = path or os.environ.get("WARMUP_PROFILES") or include_path("profiles.yaml")
    profiles, folder = load_yaml(chosen, ProfilesFile).profiles, Path(chosen).resolve().parent
    return [
        profile.model_copy(update={"pod_template": profile.pod_template and str(folder / profile.pod_template)})
        for profile in profiles
    ]
