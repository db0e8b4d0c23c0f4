"""Tokenizer, chat template and answers: stable, lossless, and sensitive to exactly what they should be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup_tasks.engines.double.answers import AnswerModel, Sampling, next_state, root_key, weights_version
from warmup_tasks.engines.double.tokenizer import Tokenizer, UnsupportedContentError

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}, {"type": "function"}]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1+1?"}]


@given(st.text())
def test_decoding_gives_the_text_back(text: str) -> None:
    tokenizer = Tokenizer("1")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_are_the_same_in_every_process() -> None:
    assert list(Tokenizer("1").encode("Hello  world!")) == [1913049743, 120460436, 1712105654, 474914676]


def test_chat_that_grows_keeps_its_head() -> None:
    tokenizer = Tokenizer("1")
    answer = {"role": "assistant", "content": " bato dodu"}
    short = tokenizer.encode_chat(CHAT, TOOLS, None)
    grown = tokenizer.encode_chat([*CHAT, answer, {"role": "user", "content": "Why?"}], TOOLS, None)
    assert grown[: len(short)] == short


@pytest.mark.parametrize(
    "changed",
    [
        {"tools": TOOLS[::-1]},
        {"tools": None},
        {"template_args": {"enable_thinking": False}},
        {"messages": CHAT[::-1]},
        {"add_generation_prompt": False},
    ],
)
def test_whatever_is_sent_shows_in_the_tokens(changed: dict[str, object]) -> None:
    tokenizer = Tokenizer("1")
    sent = {"messages": CHAT, "tools": TOOLS, "template_args": None}
    assert tokenizer.encode_chat(**sent) != tokenizer.encode_chat(**sent | changed)


def test_other_template_version_renders_other_tokens() -> None:
    assert Tokenizer("1").encode_chat(CHAT, None, None) != Tokenizer("2").encode_chat(CHAT, None, None)


def test_part_that_is_no_text_is_refused() -> None:
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(UnsupportedContentError):
        Tokenizer("1").encode_chat(picture, None, None)


def test_answer_is_read_back_as_its_own_tokens() -> None:
    tokenizer = Tokenizer("1")
    model = AnswerModel(tokenizer, seed=0)
    draws = [model.draw(bytes([n]) * 16, Sampling(ignore_eos=True), n, 0.0) for n in range(50)]
    tokens = [draw.token for draw in draws]
    assert list(tokenizer.encode(tokenizer.decode(tokens))) == tokens


def test_likeliest_token_does_not_depend_on_asking_for_logprobs() -> None:
    model = AnswerModel(Tokenizer("1"), seed=0)
    for n in range(50):
        state = bytes([n]) * 16
        with_top = model.draw(state, Sampling(top=5), n, 0.0)
        assert model.draw(state, Sampling(), n, 0.0).token == with_top.token == with_top.top[0][0]
        assert [logprob for _, logprob in with_top.top] == sorted((p for _, p in with_top.top), reverse=True)


def test_drift_moves_logprobs_a_little() -> None:
    model = AnswerModel(Tokenizer("1"), seed=0)
    state = b"s" * 16
    still, moved = (dict(model.draw(state, Sampling(top=20), 0, drift).top) for drift in (0.0, 0.01))
    shared = still.keys() & moved.keys()
    assert 0.0 < max(abs(still[token] - moved[token]) for token in shared) <= 0.02 + 1e-9


def test_keys_separate_salts_and_adapters_and_states_only_weights() -> None:
    keys = {root_key(a, s) for a in (None, ("a", "/p"), ("a", "/q"), ("b", "/p")) for s in (None, "x", "y")}
    assert len(keys) == 12
    one, other = weights_version("r1", None), weights_version("r2", None)
    assert next_state(b"", one, [1, 2]) != next_state(b"", other, [1, 2])
    assert next_state(b"", one, [1, 2]) != next_state(b"", one, [2, 1])
