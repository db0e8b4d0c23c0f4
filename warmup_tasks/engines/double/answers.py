"""What the double says: words drawn from the state of its cache, so that a wrong state gives a wrong answer.

Here live the two hash chains over blocks and the draw of one next token with its log-probabilities. Pure functions of
their arguments, apart from the drift, which counts its own draws.
"""

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from warmup_tasks.engines.double.tokenizer import Tokenizer

MAX_TOP_LOGPROBS = 20
_END_ODDS = 40
_END_AFTER = 4
_TAIL_MASS = 2.0
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


class Draw(NamedTuple):
    """One generated token. ``top`` holds (token, log-probability), likeliest first, when it was asked for."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Sampling(NamedTuple):
    """How tokens are drawn from a state."""

    temperature: float = 0.0
    seed: int = 0
    top: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0


def root_key(adapter: tuple[str, str] | None, salt: str | None) -> bytes:
    """Return what the first block's key is chained to: adapter (name, path) and salt."""
    return xxhash.xxh3_128_digest(repr((adapter, salt)).encode("utf-8", "surrogatepass"))


def weights_version(revision: str, adapter_weights: bytes | None) -> bytes:
    """Return the version of the weights that compute a block: base revision and adapter content, not their names."""
    return xxhash.xxh3_128_digest(repr((revision, adapter_weights)).encode())


def next_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the key of a block of tokens."""
    return xxhash.xxh3_128_digest(parent + array("Q", tokens).tobytes())


def next_state(parent: bytes, version: bytes, tokens: Sequence[int]) -> bytes:
    """Return the state after these tokens, computed under a weights version. No tokens leave the state as it is."""
    return xxhash.xxh3_128_digest(parent + version + array("Q", tokens).tobytes()) if tokens else parent


class AnswerModel:
    """Draws words that the tokenizer reads back as the very same tokens."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        syllables = [c + v for c in _CONSONANTS for v in _VOWELS]
        words = [a + b for i, a in enumerate(syllables) for b in syllables[i % 7 :: 7]]
        self._words = [tokenizer.id_of(f" {word}") for word in words]
        self._end = tokenizer.end
        self._seed = seed
        self._noise_drawn = 0

    def draw(self, state: bytes, sampling: Sampling, generated: int, drift: float) -> Draw:
        """Return the token that follows ``state`` after ``generated`` tokens of this answer.

        Args:
            state: the chain over all tokens so far.
            sampling: temperature 0 takes the likeliest.
            generated: tokens of the answer so far.
            drift: amplitude of the noise on every logit, in nats.
        """
        drawn = xxhash.xxh3_64_intdigest(state)
        may_end = generated >= max(_END_AFTER, sampling.min_tokens) and not sampling.ignore_eos
        ends = may_end and (drawn >> 40) % _END_ODDS == 0
        first = self._end if ends else self._words[drawn % len(self._words)]
        if sampling.top is None and sampling.temperature == 0.0 and drift == 0.0:
            return Draw(first, 0.0, ())
        ranked = self._ranked(state, first, drift)
        rank = self._sampled_rank(state, ranked, sampling, generated)
        token, logprob = ranked[rank]
        return Draw(token, logprob, tuple(ranked[: sampling.top or 0]))

    def _ranked(self, state: bytes, first: int, drift: float) -> list[tuple[int, float]]:
        logits: dict[int, float] = {first: 0.0}
        gap = 0.0
        for place in range(1, MAX_TOP_LOGPROBS + 4):
            drawn = xxhash.xxh3_64_intdigest(state, seed=place)
            share = (drawn >> 32) / 2**32
            gap += 3.0 * share**3 if place == 1 else 0.6 * share
            logits.setdefault(self._words[drawn % len(self._words)], -gap)
        if drift:
            logits = {token: value + drift * self._noise() for token, value in logits.items()}
        total = math.log(sum(map(math.exp, logits.values())) + _TAIL_MASS)
        ranked = sorted(logits.items(), key=lambda pair: -pair[1])
        return [(token, value - total) for token, value in ranked]

    def _noise(self) -> float:
        self._noise_drawn += 1
        return 2.0 * xxhash.xxh3_64_intdigest(b"drift", seed=self._seed + self._noise_drawn) / 2**64 - 1.0

    @staticmethod
    def _sampled_rank(state: bytes, ranked: list[tuple[int, float]], sampling: Sampling, generated: int) -> int:
        if sampling.temperature == 0.0:
            return 0
        weights = [math.exp(logprob / sampling.temperature) for _, logprob in ranked]
        drawn = xxhash.xxh3_64_intdigest(state, seed=(sampling.seed + generated) & (2**64 - 1)) / 2**64 * sum(weights)
        for rank, weight in enumerate(weights):
            drawn -= weight
            if drawn <= 0.0:
                return rank
        return len(ranked) - 1
