"""The shapes of generation responses: whole, in pieces, with log-probabilities and usage.

Here live what the engine's two API styles look like. Nothing here schedules or waits.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from warmup_tasks.engines.double.answers import Draw
from warmup_tasks.engines.double.core import Core
from warmup_tasks.engines.double.flights import Flight
from warmup_tasks.engines.double.protocol import ChatBody, CompletionBody
from warmup_tasks.engines.double.tokenizer import Tokenizer


class Answer:
    """What has been told of one prompt so far: text up to a stop string, and the draws of the newest piece."""

    def __init__(self, tokenizer: Tokenizer, flight: Flight, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self.flight = flight
        self._stops = stops
        self.text = ""
        self.fresh_text = ""
        self.fresh: list[Draw] = []
        self.told = 0
        self.stop_reason: str | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string ended the answer."""
        return self.stop_reason is not None

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended; None while it goes on."""
        return "stop" if self.is_stopped else self.flight.finish_reason

    def take(self, draws: Sequence[Draw]) -> None:
        """Append draws; those after a stop string are dropped."""
        before = len(self.text)
        self.fresh = []
        for draw in draws:
            self.fresh.append(draw)
            if draw.token != self._tokenizer.end:
                self.text += self._tokenizer.text_of(draw.token)
            found = [(self.text.find(stop), stop) for stop in self._stops if stop in self.text]
            if found:
                cut, self.stop_reason = min(found)
                self.text = self.text[:cut]
                break
        self.fresh_text = self.text[before:]
        self.told += len(self.fresh)


class Shape(ABC):
    """One response in one API style."""

    kind: str
    piece_kind: str

    def __init__(self, core: Core, body: ChatBody | CompletionBody, response_id: str, model: str) -> None:
        self._core = core
        self.body = body
        self._id = response_id
        self._model = model
        self._created = int(time.time())

    @abstractmethod
    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the response that is not streamed."""

    @abstractmethod
    def heads(self, count: int) -> list[dict[str, Any]]:
        """Return the pieces that come before the first token."""

    @abstractmethod
    def piece(self, index: int, answer: Answer) -> dict[str, Any]:
        """Return the piece of an answer's newest tokens."""

    def usage_chunk(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the last piece of a stream."""
        usage = self._usage(answers, cached_of=answers[0], is_stream=True)
        return self._frame(self.piece_kind, []) | {"usage": usage}

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}

    def _whole(self, answers: Sequence[Answer], choices: list[dict[str, Any]]) -> dict[str, Any]:
        rest = {
            "service_tier": None,
            "system_fingerprint": f"vllm-{self._core.config.version}-double",
            "usage": self._usage(answers, cached_of=answers[-1], is_stream=False),
            "kv_transfer_params": None,
        }
        return self._frame(self.kind, choices) | rest

    def _usage(self, answers: Sequence[Answer], *, cached_of: Answer, is_stream: bool) -> dict[str, Any] | None:
        choices = self.body.n or 1
        prompt = sum(answer.flight.prompt_tokens for answer in answers[::choices])
        completion = sum(answer.told for answer in answers)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        fault = self._core.faults.now.usage_details
        if fault == "no_usage":
            return None
        is_told = self._core.config.enable_prompt_tokens_details and fault == "present"
        if is_told:
            usage["prompt_tokens_details"] = {"cached_tokens": cached_of.flight.cached_tokens or 0}
        elif fault == "null_cached_tokens":
            usage["prompt_tokens_details"] = {"cached_tokens": None}
        elif fault == "null" or (fault == "present" and not is_stream):
            usage["prompt_tokens_details"] = None
        return usage

    def _token_ids(self, draws: Sequence[Draw]) -> list[int] | None:
        return [draw.token for draw in draws] if self.body.return_token_ids else None


class ChatShape(Shape):
    """``chat.completion``."""

    kind = "chat.completion"
    piece_kind = "chat.completion.chunk"

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the response that is not streamed."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": a.text, "refusal": None, "reasoning": None},
                "logprobs": self._logprobs(a.flight.draws[: a.told]),
                "finish_reason": a.finish_reason,
                "stop_reason": a.stop_reason,
                "token_ids": self._token_ids(a.flight.draws[: a.told]),
            }
            for index, a in enumerate(answers)
        ]
        prompt_ids = answers[0].flight.tokens[: answers[0].flight.prompt_tokens]
        rest = {"prompt_logprobs": None, "prompt_token_ids": prompt_ids if self.body.return_token_ids else None}
        return self._whole(answers, choices) | rest

    def heads(self, count: int) -> list[dict[str, Any]]:
        """Return the role pieces."""
        delta = {"role": "assistant", "content": ""}
        choices = ({"index": i, "delta": delta, "logprobs": None, "finish_reason": None} for i in range(count))
        return [self._frame(self.piece_kind, [choice]) for choice in choices]

    def piece(self, index: int, answer: Answer) -> dict[str, Any]:
        """Return the piece of an answer's newest tokens."""
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": answer.fresh_text},
            "logprobs": self._logprobs(answer.fresh),
            "finish_reason": answer.finish_reason,
            "token_ids": self._token_ids(answer.fresh),
        }
        if answer.finish_reason is not None:
            choice["stop_reason"] = answer.stop_reason
        return self._frame(self.piece_kind, [choice])

    def _logprobs(self, draws: Sequence[Draw]) -> dict[str, Any] | None:
        if self.body.top is None:
            return None
        return {
            "content": [
                self._entry(draw.token, draw.logprob)
                | {"top_logprobs": [self._entry(token, logprob) for token, logprob in draw.top]}
                for draw in draws
            ]
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._core.tokenizer.text_of(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


class CompletionShape(Shape):
    """``text_completion``."""

    kind = piece_kind = "text_completion"

    def __init__(self, core: Core, body: CompletionBody, response_id: str, model: str) -> None:
        super().__init__(core, body, response_id, model)
        self._offsets: dict[int, int] = {}

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the response that is not streamed."""
        choices = [
            {
                "index": index,
                "text": a.text,
                "logprobs": self._logprobs(index, a.flight.draws[: a.told]),
                "finish_reason": a.finish_reason,
                "stop_reason": a.stop_reason,
                "token_ids": self._token_ids(a.flight.draws[: a.told]),
                "prompt_logprobs": None,
                "prompt_token_ids": self._prompt_ids(a),
            }
            for index, a in enumerate(answers)
        ]
        return self._whole(answers, choices)

    def heads(self, count: int) -> list[dict[str, Any]]:
        """Completions have none."""
        return []

    def piece(self, index: int, answer: Answer) -> dict[str, Any]:
        """Return the piece of an answer's newest tokens."""
        is_first = answer.told == len(answer.fresh)
        choice = {
            "index": index,
            "text": answer.fresh_text,
            "logprobs": self._logprobs(index, answer.fresh),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "prompt_token_ids": self._prompt_ids(answer) if is_first else None,
            "token_ids": self._token_ids(answer.fresh),
        }
        return self._frame(self.piece_kind, [choice])

    def _prompt_ids(self, answer: Answer) -> list[int] | None:
        return answer.flight.tokens[: answer.flight.prompt_tokens] if self.body.return_token_ids else None

    def _logprobs(self, index: int, draws: Sequence[Draw]) -> dict[str, Any] | None:
        top = self.body.top
        if top is None:
            return None
        text_of = self._core.tokenizer.text_of
        offsets: list[int] = []
        offset = self._offsets.get(index, 0)
        for draw in draws:
            offsets.append(offset)
            offset += len(text_of(draw.token))
        self._offsets[index] = offset
        return {
            "text_offset": offsets,
            "token_logprobs": [draw.logprob for draw in draws],
            "tokens": [text_of(draw.token) for draw in draws],
            "top_logprobs": [
                {text_of(draw.token): draw.logprob} | {text_of(token): logprob for token, logprob in draw.top}
                for draw in draws
            ],
        }
