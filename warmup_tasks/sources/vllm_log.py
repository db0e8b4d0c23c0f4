"""vLLM server logs: requests from the lines about them, the prefix cache's hit rate as evidence beside them.

At INFO a request line has no prompt; it counts for timing. At DEBUG the prompt stands in a line of its own, and newer
servers log the JSON body as well; older ones had the prompt at INFO. A prompt that ``--max-log-len`` cut is never
passed on as whole.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

import orjson

from warmup_tasks.sources import fields, prompts, reading, vllm_lines
from warmup_tasks.sources.base import Mapped, NotARequest, Recognition, Request, Sample, Source
from warmup_tasks.sources.clock import LocalClock
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.options import ReadOptions
from warmup_tasks.sources.text_lines import texts
from warmup_tasks.sources.vllm_limit import LogLimit, find_limit

_MOST_OPEN = 1_000
_NO_LIMIT = LogLimit()
_HEAD_WEIGHT = 4  # banners, progress bars and stack traces fill such a log, and no other format has its heads
_TYPES = {"chatcmpl": "chat", "cmpl": "completion", "embd": "embedding", "embedding": "embedding", "pool": "embedding"}
_NOT_GENERATING = ("tokenize", "detokenize", "render")
_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
_LEVEL_HINT = (
    "start the server with --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG: at INFO its request lines have no prompt"
)


class VLLMLogSource(Source):
    """Reads vLLM server logs."""

    name = "vllm-log"
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": _LEVEL_HINT + "; without --max-log-len, which cuts it",
        "answer_text": "start the server with --enable-log-outputs besides",
        "cached_tokens": "the server's log does not tell; use the gateway's, with --enable-prompt-tokens-details",
        "ttft_ms": "the server's log does not tell; use the gateway's",
        "status": "start the server with --enable-log-outputs",
        "tenant": "the server's log does not tell; use the gateway's",
        "cache_salt": "only the JSON body tells, which newer servers log at DEBUG",
    }

    def __init__(self, clock: LocalClock | None = None, limit: LogLimit = _NO_LIMIT) -> None:
        self._clock = clock or LocalClock("UTC", None, None)
        self._limit = limit
        self._seen: Counter[str] = Counter()
        self._hit_rates: tuple[float, float] | None = None

    def for_file(self, file: reading.LogFile, options: ReadOptions) -> Self:
        """Learn from the whole file how long prompts can be in it, and from its age which year it means."""
        clock = LocalClock(options.zone, options.epoch, _modified(file))
        return type(self)(clock, find_limit(text for _, text in texts(reading.lines(file.blocks()))))

    def recognise(self, sample: Sample) -> Recognition:
        """A file is in this format when lines have vLLM's head, or are requests or statistics of its."""
        own = sum(vllm_lines.is_own(line.data.decode(errors="replace")) for line in sample.lines)
        total = len(sample.lines)
        score = min(0.95, _HEAD_WEIGHT * own / total) if total else 0.0
        return Recognition(score, f"a vLLM server's line head in {own} of {total} lines")

    def records(self, lines: Iterator[reading.Line]) -> Iterator[reading.Raw]:
        """Yield one record a request, its lines joined, and one for each line that belongs to none."""
        joined = _Joined()
        model = self._limit.model
        for line, text in texts(lines):
            if line.fault is not None:
                yield reading.Raw(line, {})
                continue
            parts = vllm_lines.take_apart(text)
            if told := vllm_lines.settings(parts.message):
                model = told.get("served_model") or told.get("model") or model
            common = {"stamp": parts.stamp, "iso": parts.iso, "model": model}
            if (found := vllm_lines.request(parts.message)) is not None:
                if line.is_open and not vllm_lines.is_whole(found["rest"]):
                    yield reading.Raw(line._replace(fault=Fault.TRUNCATED_LINE), {})
                else:
                    yield from joined.arrive(line, found["id"], {**common, "rest": found["rest"]})
            elif (found := vllm_lines.details(parts.message)) is not None:
                yield from joined.prepare(line, found["id"], found["rest"])
            elif (found := vllm_lines.body(parts.message)) is not None:
                joined.add_body(found["id"], found["rest"])
                yield reading.Raw(line, {"ground": "the JSON body of a request, read with its request line"})
            elif (found := vllm_lines.answer(parts.message)) is not None:
                yield from joined.finish(line, found["id"], found["rest"])
            else:
                yield reading.Raw(line, {"ground": self._other(parts.message, line)})
        yield from joined.rest()

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request, or what a line is that tells of none."""
        if (ground := fields.text(record, "ground")) is not None:
            return NotARequest(ground)
        request_id, rest = fields.text(record, "id"), fields.text(record, "rest") or ""
        if request_id is None:
            return NotARequest("neither a request id nor a line of the server")
        kind = request_id.partition("-")[0]
        if kind in _NOT_GENERATING:
            return NotARequest(f"call of {kind}")
        content = vllm_lines.sent(fields.text(record, "details") or rest)
        if content.is_broken:
            raise BadRecordError(Fault.TRUNCATED_LINE, "the prompt in the line does not end")
        body = self._body(fields.text(record, "body"))
        adapter = vllm_lines.adapter(rest)
        answered = fields.text(record, "answer")
        answer = vllm_lines.answer_text(answered) if answered else None
        request_type = _request_type(kind, rest)
        prompt, is_truncated = self._prompt(content, body, request_type)
        self._seen["requests"] += 1
        self._seen["truncated"] += is_truncated
        ids = None if self._limit.cuts(content.token_ids) else content.token_ids
        return Request(
            time=self._time(record),
            request_id=request_id,
            tenant=fields.text(body, "user"),
            model=fields.text(record, "model")
            if adapter
            else fields.text(body, "model") or fields.text(record, "model"),
            adapter=adapter,
            cache_salt=fields.salt(body, "cache_salt"),
            request_type=request_type,
            prompt=prompt,
            is_truncated=is_truncated,
            input_tokens=len(ids) if ids else None,
            status=vllm_lines.status(answered) if answered else None,
            answer_text=None if self._limit.cuts(answer) else answer,
        )

    def notes(self) -> list[str]:
        """Return the cache's hit rates, cut prompts, and what a log without requests needs."""
        notes = []
        if self._hit_rates is not None:
            first, last = self._hit_rates
            notes.append(
                f"{self._seen['hit rates']} lines tell the prefix cache's hit rate: {first:g} % first, {last:g} % last"
            )
        if self._seen["truncated"]:
            notes.append(
                f"{self._seen['truncated']} prompts are cut to {self._limit.characters} characters or token ids "
                f"({self._limit.ground}) and are never warmed: start the server without --max-log-len"
            )
        if not self._seen["requests"]:
            served = self._seen["access"]
            told = f"though {served} access lines tell of requests" if served else "and no access line tells of any"
            notes.append(f"no request line in this log, {told}: {_LEVEL_HINT}")
        return notes

    def _other(self, message: str, line: reading.Line) -> str:
        rate = vllm_lines.hit_rate_pct(message)
        if rate is not None:
            self._seen["hit rates"] += 1
            self._hit_rates = (self._hit_rates[0] if self._hit_rates else rate, rate)
            return "prefix cache statistics"
        found = vllm_lines.access(message)
        if found is not None:
            self._seen["access"] += found["path"].startswith(_ENDPOINTS)
            return "access line without time"
        return "line that is not about a request"

    def _time(self, record: Mapping[str, Any]) -> datetime:
        iso, stamp = fields.text(record, "iso"), fields.text(record, "stamp")
        if iso is not None:
            return self._clock.read(iso, "the line's time")
        if stamp is None:
            raise BadRecordError(Fault.NO_TIME, "the request line has none")
        return self._clock.read_yearless(stamp)

    def _body(self, text: str | None) -> dict[str, Any]:
        """Return the logged JSON body; one that was cut tells nothing."""
        if text is None or self._limit.cuts(text):
            return {}
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    def _prompt(self, content: vllm_lines.Sent, body: dict[str, Any], request_type: str) -> tuple[prompts.Prompt, bool]:
        """Return the prompt as it was sent where that is known, else as the engine got it, and whether it is cut.

        The engine's text of a chat is rendered: sent again as text it would get a second beginning, hence its tokens.
        """
        if body.get("messages") is not None:
            return prompts.chat(body["messages"], body.get("tools"), body.get("chat_template_kwargs")), False
        text, ids = content.prompt, content.token_ids
        is_text_cut, are_ids_cut = self._limit.cuts(text), self._limit.cuts(ids)
        if text and not is_text_cut and (request_type != "chat" or not ids or are_ids_cut):
            return prompts.completion(text), False
        if ids and not are_ids_cut:
            return prompts.completion(ids, "prompt_token_ids"), False
        cut = text or ids
        return (prompts.completion(cut), True) if cut else (prompts.NO_CONTENT, False)


class _Joined:
    """The lines of requests that are under way, joined by request id; the oldest go first when they are too many."""

    def __init__(self) -> None:
        self._prepared: OrderedDict[str, reading.Raw] = OrderedDict()
        self._arrived: OrderedDict[str, reading.Raw] = OrderedDict()
        self._bodies: OrderedDict[str, str] = OrderedDict()

    def prepare(self, line: reading.Line, request_id: str, details: str) -> Iterator[reading.Raw]:
        """Keep a details line until its request line, which tells the adapter; alone it can not be used."""
        alone = "the prompt of a request whose request line is not in this file"
        yield from _put(self._prepared, request_id, reading.Raw(line, {"ground": alone, "details": details}))

    def add_body(self, request_id: str, body: str) -> None:
        """Keep a JSON body, whose request line comes with the same id between a prefix and a number."""
        self._bodies[request_id] = body
        if len(self._bodies) > _MOST_OPEN:
            self._bodies.popitem(last=False)

    def arrive(self, line: reading.Line, request_id: str, value: dict[str, Any]) -> Iterator[reading.Raw]:
        """Keep a request line, with what was kept for it."""
        value = {**value, "id": request_id}
        if (prepared := self._prepared.pop(request_id, None)) is not None:
            value["details"] = prepared.value["details"]
        for name in _body_ids(request_id):
            if (body := self._bodies.get(name)) is not None:
                value["body"] = body
                break
        yield from _put(self._arrived, request_id, reading.Raw(line, value))

    def finish(self, line: reading.Line, request_id: str, answer: str) -> Iterator[reading.Raw]:
        """Yield the request whose answer this is."""
        found = self._arrived.pop(request_id, None) or self._arrived.pop(f"{request_id}-0", None)
        if found is not None:
            yield reading.Raw(found.line, {**found.value, "answer": answer})
        yield reading.Raw(
            line, {"ground": "an answer, read with its request" if found else "an answer without request"}
        )

    def rest(self) -> Iterator[reading.Raw]:
        """Yield what is still kept."""
        yield from self._prepared.values()
        yield from self._arrived.values()


def _put(kept: OrderedDict[str, reading.Raw], request_id: str, raw: reading.Raw) -> Iterator[reading.Raw]:
    if (older := kept.pop(request_id, None)) is not None:
        yield older
    kept[request_id] = raw
    if len(kept) > _MOST_OPEN:
        yield kept.popitem(last=False)[1]


def _body_ids(request_id: str) -> Iterator[str]:
    yield request_id
    without_prefix = request_id.partition("-")[2]
    yield without_prefix
    yield without_prefix.rpartition("-")[0]


def _request_type(kind: str, rest: str) -> str:
    if "params: PoolingParams(" in rest:
        return "embedding"
    return _TYPES.get(kind, "completion" if "SamplingParams(" in rest else "unknown")


def _modified(file: reading.LogFile) -> datetime | None:
    """Return when the file was last changed, where its file system tells."""
    try:
        moment: datetime = file.fs.modified(file.path)
    except (NotImplementedError, OSError, KeyError, AttributeError):
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
