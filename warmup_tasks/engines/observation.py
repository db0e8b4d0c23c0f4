"""What can be *observed* of an engine's identity from outside, by asking it fixed questions (spec 1.3)."""

from warmup_tasks.engines.base import Engine
from warmup_tasks.errors import RejectItemError
from warmup_tasks.identity import digest
from warmup_tasks.items import PromptBody

_CONVERSATION = PromptBody(
    messages=[
        {"role": "system", "content": "Answer in one line."},
        {"role": "user", "content": "Which city lies on the river Limmat?"},
        {"role": "assistant", "content": "Zurich."},
        {"role": "user", "content": "And on the Aare?"},
    ],
    tools=[
        {
            "type": "function",
            "function": {
                "name": "lookup",
                "description": "Look a river up.",
                "parameters": {"type": "object", "properties": {"river": {"type": "string"}}, "required": ["river"]},
            },
        }
    ],
)


async def chat_template_digest(engine: Engine, model: str, *, deadline_s: float) -> str | None:
    """Return the digest of a fixed conversation's token ids: it moves with the chat template and the tokenizer.

    This is the scale on which ``chat_template_digest`` is declared in the fleet file. None where the model takes no
    conversation or the engine has no tokenizer endpoint.
    """
    try:
        return digest(await engine.tokenize(_CONVERSATION, model, deadline_s=deadline_s))
    except RejectItemError:
        return None
