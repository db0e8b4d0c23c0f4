"""Helicone exports: one object a request, with bodies, token counts and times, as its API and export tool give them.

Names after ``HeliconeRequest`` in Helicone's ``packages/llm-mapper/types.ts`` and docs.helicone.ai/tools/export; the
bodies are read by the rules of ``openai.py``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from warmup_tasks.sources import fields
from warmup_tasks.sources.base import Mapped, Recognition, Request, Sample
from warmup_tasks.sources.fields import Path
from warmup_tasks.sources.nests import Nest
from warmup_tasks.sources.openai import OpenAISource
from warmup_tasks.sources.structured import StructuredSource, json_value

_OPENAI = OpenAISource()
_NO_MODEL = "!none"
_OWN = {"request_id", "request_created_at"}
_ALSO = {"request_body", "response_status", "request_path", "delay_ms", "prompt_tokens"}
_PROPERTIES = ("request_properties", "properties")
_TENANT: tuple[Path, ...] = tuple(
    (place, name) for place in _PROPERTIES for name in ("tenant", "Tenant", "tenant_id", "Tenant-Id", "TenantId")
)
_SESSION: tuple[Path, ...] = tuple((place, "Helicone-Session-Id") for place in _PROPERTIES)


class HeliconeSource(StructuredSource):
    """Reads Helicone exports: JSON lines, a JSON array, CSV, or the API's answer with its ``data``."""

    name = "helicone"
    nests = (Nest("data.item"),)
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": "export with --include-body",
        "answer_text": "export with --include-body",
        "cached_tokens": "run the engine with --enable-prompt-tokens-details",
        "tenant": "send Helicone-Property-Tenant, or Helicone-User-Id, with each request",
    }

    def recognise(self, sample: Sample) -> Recognition:
        """A record belongs to this format when it has Helicone's id, creation time and two more of its names."""
        return self.vote(
            sample,
            lambda record: record.keys() >= _OWN and len(record.keys() & _ALSO) > 1,
            "request_id, request_created_at and more of Helicone's names",
        )

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request."""
        record = {name: json_value(value) for name, value in record.items()}
        body, response = record.get("request_body"), record.get("response_body")
        content = body if isinstance(body, dict) else {}
        model = fields.text(content, "model") or fields.text(record, "request_model", "model", "response_model")
        mapped = _OPENAI.read_record(
            {
                "time": record.get("request_created_at"),
                "request_id": fields.text(record, "request_id"),
                "tenant": fields.text(record, *_TENANT, "request_user_id", "helicone_user"),
                "session_id": fields.text(record, *_SESSION),
                "request": {**content, "model": model or _NO_MODEL},
                "response": response if isinstance(response, dict) else None,
                "usage": {
                    "prompt_tokens": record.get("prompt_tokens"),
                    "completion_tokens": record.get("completion_tokens"),
                    "cached_tokens": record.get("prompt_cache_read_tokens"),
                },
                "latency_ms": record.get("delay_ms"),
                "ttft_ms": record.get("time_to_first_token"),
                "status": fields.small_count(record, "response_status"),
                "endpoint": fields.text(record, "request_path"),
            }
        )
        if isinstance(mapped, Request) and mapped.model == _NO_MODEL:
            mapped.model = None
        return mapped
