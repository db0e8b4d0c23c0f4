"""The log formats that exist, and which of them a file is in.

A new format is its module and one line here.
"""

from typing import NamedTuple

import orjson

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.sources import containers, postgres, reading
from warmup_tasks.sources.agent_text import AgentTextSource
from warmup_tasks.sources.azure_llm import AzureLLMSource
from warmup_tasks.sources.bailian import BailianSource
from warmup_tasks.sources.base import Sample, Source
from warmup_tasks.sources.coding_sessions import CodingSessionsSource
from warmup_tasks.sources.envoy import EnvoySource
from warmup_tasks.sources.helicone import HeliconeSource
from warmup_tasks.sources.kong import KongSource
from warmup_tasks.sources.lake_table import LakeTableSource
from warmup_tasks.sources.langfuse import LangfuseSource
from warmup_tasks.sources.litellm import LiteLLMSource
from warmup_tasks.sources.mooncake import MooncakeSource
from warmup_tasks.sources.normalised import NormalisedSource
from warmup_tasks.sources.openai import OpenAISource
from warmup_tasks.sources.otel import OTelSource
from warmup_tasks.sources.vllm_log import VLLMLogSource

SOURCES: tuple[Source, ...] = (
    NormalisedSource(),
    LakeTableSource(),
    AgentTextSource(),
    OTelSource(),
    LangfuseSource(),
    LiteLLMSource(),
    KongSource(),
    EnvoySource(),
    HeliconeSource(),
    OpenAISource(),
    MooncakeSource(),
    BailianSource(),
    CodingSessionsSource(),
    AzureLLMSource(),
    VLLMLogSource(),
)
AUTO = "auto"
postgres.register()
_ENOUGH = 0.3  # of a sample's lines; a few bad or foreign lines must not hide a format


class Choice(NamedTuple):
    """The format chosen for a file (None: no known one), and the ground in words."""

    source: Source | None
    ground: str


def formats() -> list[str]:
    """Return what may stand as a log format, ``auto`` included."""
    return [AUTO, *(source.name for source in SOURCES)]


def named(name: str) -> Source:
    """Return the format of that name; ``StopIteration`` where there is none."""
    return next(source for source in SOURCES if source.name == name)


def choose(file: reading.LogFile, log_format: str) -> Choice:
    """Return the format of a file: the one that was asked for, or with ``auto`` the one that is surest of it.

    Raises:
        ConfigurationError: no format has that name.
    """
    if log_format not in formats():
        raise ConfigurationError(f"log_format: {log_format!r} is not known; use one of {', '.join(formats())}")
    if log_format != AUTO:
        return Choice(named(log_format), "asked for")
    seen = look_at(file)
    best, recognition = max(((s, s.recognise(seen)) for s in SOURCES), key=lambda pair: pair[1].score)
    if recognition.score >= _ENOUGH:
        return Choice(best, recognition.ground)
    return Choice(None, f"nearest was {best.name}: {recognition.ground}" if seen.lines else "the file is empty")


def look_at(file: reading.LogFile) -> Sample:
    """Return the beginning of a file."""
    lines, head = reading.sample(file), containers.head(file)
    records = [record for line in lines if (record := _object(line)) is not None]
    return Sample(file.name, lines, records, *containers.first_records(file, head), head)


def _object(line: reading.Line) -> dict[str, object] | None:
    try:
        value = orjson.loads(line.data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
