"""How long a prompt can be in a vLLM server's log: ``--max-log-len`` cuts text, token ids and JSON bodies alike.

The log says so only in its first lines, which rotation loses; what was cut tells the rest. Finding out, and saying
whether a content is at the limit; nothing else.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from warmup_tasks.sources import vllm_lines

_LEAST_TELLING = 32
_ROUND = 50
_ENOUGH = 2  # different prompts that end at one length


class LogLimit(NamedTuple):
    """The limit (None: none was found), on what ground, and the model whose server wrote the log."""

    characters: int | None = None
    ground: str = ""
    model: str | None = None

    def cuts(self, content: Sequence[object] | None) -> bool:
        """Say whether a text or a list of token ids may go on behind what is logged."""
        return content is not None and self.characters is not None and len(content) >= self.characters


def find_limit(log_texts: Iterable[str]) -> LogLimit:
    """Return the limit of a whole log.

    The server's own arguments count first, then a JSON body that ends too early, then text and token ids of one prompt
    that are equally long, then several prompts that end at one round number; of these only what nothing exceeds.
    """
    seen = _Seen()
    for text in log_texts:
        seen.take(vllm_lines.take_apart(text).message)
    longest = max(seen.longest, *seen.cut_bodies, *seen.prompts, 0)
    if seen.told is not None:
        return LogLimit(seen.told, "the server's arguments say so", seen.model)
    if seen.cut_bodies == {longest}:
        return LogLimit(longest, "a JSON body ends there", seen.model)
    if longest in seen.twins and longest >= _LEAST_TELLING:
        return LogLimit(longest, "text and token ids end there together", seen.model)
    if longest >= _LEAST_TELLING and _is_round(longest) and len(seen.prompts.get(longest, ())) > 1:
        return LogLimit(longest, "several prompts end there", seen.model)
    return LogLimit(None, "", seen.model)


class _Seen:
    """What a log's lines told of lengths, and of the server."""

    def __init__(self) -> None:
        self.told: int | None = None
        self.model: str | None = None
        self.longest = 0
        self.cut_bodies: set[int] = set()
        self.twins: set[int] = set()
        self.prompts: dict[int, set[int]] = {}

    def take(self, message: str) -> None:
        if arguments := vllm_lines.settings(message):
            self.told = int(arguments["max_log_len"]) if "max_log_len" in arguments else self.told
            self.model = arguments.get("served_model") or arguments.get("model") or self.model
        elif (found := vllm_lines.body(message)) is not None:
            if _is_json(found["rest"]):
                self.longest = max(self.longest, len(found["rest"]))
            else:
                self.cut_bodies.add(len(found["rest"]))
        elif (found := vllm_lines.details(message) or vllm_lines.request(message)) is not None:
            self._take_content(vllm_lines.sent(found["rest"]))

    def _take_content(self, content: vllm_lines.Sent) -> None:
        for part in (content.prompt, content.token_ids):
            if part:
                which = self.prompts.setdefault(len(part), set())
                if len(which) < _ENOUGH:
                    which.add(hash(part if isinstance(part, str) else tuple(part)))
        if content.prompt and content.token_ids and len(content.prompt) == len(content.token_ids):
            self.twins.add(len(content.prompt))


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _is_round(number: int) -> bool:
    return number % _ROUND == 0 or number & (number - 1) == 0
