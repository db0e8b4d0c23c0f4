"""How long a prompt can be in a vLLM server's log: ``--max-log-len`` cuts text, token ids and JSON bodies alike.

The log says so only in its first lines, which rotation loses; what was cut tells the rest. Finding out, and saying
whether a content is at the limit; nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from warmup_tasks.sources import vllm_lines

_LEAST_TELLING = 32
_ROUND = 50


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
    that are equally long and longer than all others, then several prompts that end at one round number.
    """
    told: int | None = None
    bodies: set[int] = set()
    lengths: Counter[int] = Counter()
    twins: set[int] = set()
    model = None
    for text in log_texts:
        message = vllm_lines.take_apart(text).message
        if arguments := vllm_lines.settings(message):
            told = int(arguments["max_log_len"]) if "max_log_len" in arguments else told
            model = arguments.get("served_model") or arguments.get("model") or model
        elif (found := vllm_lines.body(message)) is not None:
            if not _is_json(found["rest"]):
                bodies.add(len(found["rest"]))
        elif (found := vllm_lines.details(message) or vllm_lines.request(message)) is not None:
            content = vllm_lines.sent(found["rest"])
            sizes = {len(part) for part in (content.prompt, content.token_ids) if part}
            lengths.update(sizes)
            if content.prompt and content.token_ids and len(sizes) == 1:
                twins |= sizes
    longest = max(lengths, default=0)
    if told is not None:
        return LogLimit(told, "the server's arguments say so", model)
    if bodies:
        return LogLimit(min(bodies), "a JSON body ends there", model)
    if longest in twins and longest >= _LEAST_TELLING:
        return LogLimit(longest, "text and token ids end there together", model)
    if longest >= _LEAST_TELLING and _is_round(longest) and lengths[longest] > 1:
        return LogLimit(longest, "several prompts end there", model)
    return LogLimit(None, "", model)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _is_round(number: int) -> bool:
    return number % _ROUND == 0 or number & (number - 1) == 0
