"""The bodies that clients send, read as the engine reads them: unknown fields pass, wrong ones are a 400.

Here live the request models and their checks. What becomes of a request is decided elsewhere.
"""

from http import HTTPStatus
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warmup_tasks.engines.double.answers import MAX_TOP_LOGPROBS
from warmup_tasks.engines.double.wire import ApiError, invalid

_SALT_CHARACTERS = 128
Token = Annotated[int, Field(ge=0, lt=2**63)]


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def read(cls, body: Any) -> Self:
        """Check a parsed body. Raises ``ApiError``."""
        if isinstance(body, dict):
            cls.check(body)
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise _validation_error(error) from error

    @classmethod
    def check(cls, body: dict[str, Any]) -> None:
        """Refuse what the engine refuses before it looks at types."""


BodyT = TypeVar("BodyT", bound=Body)


class StreamOptions(Body):
    """What a stream tells beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(Body):
    """What chat and completion bodies share."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    cache_salt: str | None = None
    priority: int = 0
    ignore_eos: bool = False
    min_tokens: int = 0
    return_token_ids: bool | None = None

    @classmethod
    def check(cls, body: dict[str, Any]) -> None:
        """Check salt and stream options, which the engine refuses in its own words."""
        salt = body.get("cache_salt")
        if salt is not None:
            if not isinstance(salt, str) or not salt:
                raise invalid("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
            if len(salt) > _SALT_CHARACTERS or any(c in salt for c in "@/\\\0"):
                raise invalid(
                    "Parameter 'cache_salt' must be at most 128 characters and must not contain "
                    "'@', '/', '\\\\', or NUL.",
                    "cache_salt",
                )
        if body.get("stream_options") and not body.get("stream"):
            raise invalid("Stream options can only be defined when `stream=True`.", "stream_options")

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else (self.stop or [])

    @property
    def has_usage_chunk(self) -> bool:
        """Whether a stream ends with usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(GenerationBody):
    """``/v1/completions``."""

    prompt: list[Token] | list[list[Token]] | str | list[str]
    logprobs: int | None = None
    echo: bool | None = False

    @classmethod
    def check(cls, body: dict[str, Any]) -> None:
        """Check prompt and logprobs too."""
        super().check(body)
        if body.get("prompt") is None or body.get("prompt") == "":
            raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        _check_top(body.get("logprobs"), "logprobs")

    @property
    def top(self) -> int | None:
        """How many alternatives are asked for; None is no log-probabilities at all."""
        return self.logprobs


class ChatBody(GenerationBody):
    """``/v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @classmethod
    def check(cls, body: dict[str, Any]) -> None:
        """Check tools and logprobs too."""
        super().check(body)
        if body.get("tools") == []:
            message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
            raise invalid(message, "tools")
        _check_top(body.get("top_logprobs"), "top_logprobs")
        if body.get("top_logprobs") and not body.get("logprobs"):
            raise invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        _check_generation_prompt(body)

    @property
    def top(self) -> int | None:
        """How many alternatives are asked for; None is no log-probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeBody(Body):
    """``/tokenize``: a prompt or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = False

    @classmethod
    def check(cls, body: dict[str, Any]) -> None:
        """Check that there is something to tokenise."""
        _check_generation_prompt(body)
        if body.get("prompt") is None and body.get("messages") is None:
            message = "1 validation error:\n  {'type': 'missing', 'loc': 'body.prompt', 'msg': 'Field required'}"
            raise ApiError(HTTPStatus.BAD_REQUEST, message, kind="Bad Request", param="body.prompt")


class DetokenizeBody(Body):
    """``/detokenize``."""

    model: str | None = None
    tokens: list[Token]


class EmbeddingBody(Body):
    """``/v1/embeddings``."""

    model: str | None = None
    input: str | list[str] | list[Token] | list[list[Token]]
    dimensions: int | None = None
    encoding_format: str = "float"


class LoadAdapterBody(Body):
    """``/v1/load_lora_adapter``."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterBody(Body):
    """``/v1/unload_lora_adapter``."""

    lora_name: str


def _check_top(value: Any, field: str) -> None:
    if value is None or isinstance(value, bool):
        return
    if not isinstance(value, int | float):
        raise invalid(f"`{field}` must be an integer.", field, value)
    if value < 0:
        raise invalid(f"`{field}` must be a positive value or -1.", field, value)
    if value > MAX_TOP_LOGPROBS:
        message = f"Requested sample logprobs of {value}, which is greater than max allowed: {MAX_TOP_LOGPROBS}"
        raise invalid(message, "logprobs", value)


def _check_generation_prompt(body: dict[str, Any]) -> None:
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise invalid("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


def _validation_error(error: ValidationError) -> ApiError:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    fields = [".".join(["body", *(str(part) for part in p["loc"] if "[" not in str(part))]) for p in problems]
    lines = [f"  {{'type': '{p['type']}', 'loc': '{f}', 'msg': '{p['msg']}'}}"
             for p, f in zip(problems[:10], fields, strict=False)]  # fmt: skip
    label = "error" if len(problems) == 1 else "errors"
    message = "\n".join([f"{len(problems)} validation {label}:", *lines])
    return ApiError(HTTPStatus.BAD_REQUEST, message, kind="Bad Request", param=fields[0])
