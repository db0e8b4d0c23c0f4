"""What a double is told at start: one frozen model, filled from a YAML file and from flags of the same names.

Here live the settings and the command line that is derived from them. Faults have their own module.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from warmup_tasks.engines.double.faults import Faults


class Latency(BaseModel):
    """The physical model of one engine step, in milliseconds (see ``scheduler.py``).

    A step costs ``overhead_ms + tokens · per_token_ms + decoding sequences · per_sequence_ms + attention``, where
    attention is ``per_million_pairs_ms`` for each million pairs of a new token and a token that it attends to. The
    defaults give about 60 ms for 1,000 cold tokens and 5 ms when they are cached.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    overhead_ms: float = Field(default=4.0, ge=0)
    per_token_ms: float = Field(default=0.054, ge=0)
    per_sequence_ms: float = Field(default=0.1, ge=0)
    per_million_pairs_ms: float = Field(default=2.0, ge=0)
    adapter_load_ms: float = Field(default=60.0, ge=0)


class DoubleConfig(BaseModel):
    """One replica. Names follow the engine's own flags where it has one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    fd: int | None = Field(default=None, description="An inherited listening socket, instead of host and port.")
    exit_with_parent: bool = Field(default=False, description="End when the starting process is gone.")
    seed: int = 0
    version: str = "0.32.0"

    model: str = Field(default="double-base", min_length=1, description="Served name of the base model.")
    model_path: str = "/models/double-base"
    weights_revision: str = Field(default="r1", description="What the answers depend on; the engine does not tell it.")
    dtype: str = "bfloat16"
    quantization: str | None = None
    template_version: str = Field(default="1", description="Changes how a chat is rendered.")
    max_model_len: int = Field(default=8192, gt=1)

    api_key: str | None = None
    developer_mode: bool = Field(default=False, description="Offers reset, sleep, pause and server_info.")
    enable_prompt_tokens_details: bool = True
    embedding_dimensions: int = Field(default=384, ge=0, description="0: no /v1/embeddings.")

    enable_prefix_caching: bool = True
    block_size: int = Field(default=16, gt=0)
    num_gpu_blocks: int = Field(default=4096, gt=1, description="As reported: one block of them is never used.")
    max_num_seqs: int = Field(default=64, gt=0)
    max_num_batched_tokens: int = Field(default=2048, gt=0)
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"

    runtime_adapters: bool = True
    adapters: dict[str, str] = Field(default_factory=dict, description="Name → PEFT folder, loaded at start.")
    max_lora_rank: int = Field(default=16, gt=0)
    max_loras: int = Field(default=4, gt=0, description="Different adapters in one step.")
    max_cpu_loras: int = Field(default=8, gt=0, description="Adapters held in memory.")

    kv_events_endpoint: str | None = None
    kv_events_replay_endpoint: str | None = None
    kv_events_topic: str = ""

    latency: Latency = Latency()
    time_scale: float = Field(default=1.0, ge=0, description="Multiplies every duration; 0 does not wait at all.")
    faults: Faults = Faults()

    @model_validator(mode="after")
    def _context_fits(self) -> Self:
        capacity = (self.num_gpu_blocks - 1) * self.block_size
        if capacity < self.max_model_len:
            raise ValueError(
                f"max_model_len {self.max_model_len} needs more than the {capacity} tokens of the cache: "
                f"raise num_gpu_blocks or lower max_model_len"
            )
        return self


def parse_config(arguments: Sequence[str] | None = None) -> DoubleConfig:
    """Return the configuration from ``--config FILE`` and flags; a flag wins. Ends the process on a bad value.

    Every field is a flag (``max_model_len`` is ``--max-model-len``); values are read as YAML, so lists, mappings and
    ``true`` work.
    """
    parser = argparse.ArgumentParser(prog="python -m warmup_tasks.engines.double", description=__doc__)
    parser.add_argument("--config", type=Path, help="YAML file with any of the fields below")
    for name, field in DoubleConfig.model_fields.items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=field.description or str(field.default))
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    path = given.pop("config", None)
    settings: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {} if path else {}
    strings = {name for name, field in DoubleConfig.model_fields.items() if field.annotation in (str, str | None)}
    settings |= {name: value if name in strings else yaml.safe_load(value) for name, value in given.items()}
    try:
        return DoubleConfig.model_validate(settings)
    except ValidationError as error:
        problems = (f"{'.'.join(str(p) for p in e['loc']) or 'configuration'}: {e['msg']}" for e in error.errors())
        parser.exit(2, "\n".join(problems) + "\n")


def command(config: DoubleConfig) -> list[str]:
    """Return the command line that starts a double with exactly this configuration."""
    values = config.model_dump(mode="json", exclude_defaults=True)
    flags = ([f"--{name.replace('_', '-')}", _as_flag(value)] for name, value in values.items())
    return [sys.executable, "-m", "warmup_tasks.engines.double", *(part for flag in flags for part in flag)]


def _as_flag(value: Any) -> str:
    return value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
