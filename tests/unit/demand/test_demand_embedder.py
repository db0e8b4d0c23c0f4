"""The built-in embedder: determinism, length, lexicon, and a clear word where dimensions differ."""

import subprocess
import sys

import numpy as np
import pytest

from warmup_tasks.demand.embedder import (
    HashingEmbedder,
    Lexicon,
    check_vectors,
    default_embedder_identity,
)
from warmup_tasks.errors import ConfigurationError, RejectItemError
from warmup_tasks.items import Reason


def _cosine(one: str, other: str, embedder: HashingEmbedder | None = None) -> float:
    vectors = (embedder or HashingEmbedder()).embed([one, other])
    return float(vectors[0] @ vectors[1])


def test_vectors_have_the_identity_s_shape_and_length_one() -> None:
    vectors = HashingEmbedder().embed(["How do I reset my password?", "", "a\ud800b ünïcode 漢字"])
    assert (vectors.shape, vectors.dtype) == ((3, default_embedder_identity().dimensions), np.dtype("float32"))
    assert np.linalg.norm(vectors, axis=1).tolist() == pytest.approx([1.0, 0.0, 1.0], abs=1e-6)


def test_another_process_gives_the_same_vector() -> None:
    code = (
        "from warmup_tasks.demand.embedder import HashingEmbedder;"
        "print(HashingEmbedder().embed(['one fixed text']).tobytes().hex())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert told == HashingEmbedder().embed(["one fixed text"]).tobytes().hex()


def test_close_wordings_are_close_and_others_are_far() -> None:
    assert _cosine("How do I reset my password?", "how can I reset my password") > 0.9
    assert _cosine("How do I reset my password?", "What is the weather in Oslo tomorrow?") < 0.4


def test_the_lexicon_makes_terms_equal_and_moves_the_identity() -> None:
    lexicon = Lexicon({"vpn": "virtual private network"})
    assert _cosine("VPN is down", "virtual private network is down", HashingEmbedder(lexicon=lexicon)) == pytest.approx(
        1
    )
    assert _cosine("VPN is down", "virtual private network is down") < 0.9
    assert lexicon.normalise("vpns and VPN") == "vpns and virtual private network"
    assert default_embedder_identity(lexicon).digest() != default_embedder_identity().digest()


def test_another_embedder_s_identity_is_refused() -> None:
    other = default_embedder_identity().model_copy(update={"dimensions": 768})
    with pytest.raises(ConfigurationError, match="768"):
        HashingEmbedder(other)


def test_a_wrong_dimension_is_a_clear_error() -> None:
    with pytest.raises(RejectItemError, match="384 dimensions, got 768") as caught:
        check_vectors(np.zeros((2, 768), dtype=np.float32), default_embedder_identity())
    assert caught.value.reason == Reason.DIMENSION_MISMATCH
    check_vectors(np.zeros((2, 384), dtype=np.float32), default_embedder_identity())
