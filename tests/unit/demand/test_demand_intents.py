"""Same question or a near miss: a wrong merge gives somebody a wrong answer."""

import pytest

from warmup_tasks.demand.embedder import HashingEmbedder, Lexicon
from warmup_tasks.demand.intents import Intent, QuestionUse, intents
from warmup_tasks.demand.near_miss import near_miss
from warmup_tasks.demand.prompts import question
from warmup_tasks.items import PromptBody


def _group(*texts: str, scope: str = "s", threshold: float = 0.7, min_uses: int = 1) -> list[list[int]]:
    asked = [QuestionUse(index, scope, text, 1) for index, text in enumerate(texts)]
    return sorted(sorted(intent.members) for intent in intents(asked, HashingEmbedder(), threshold, min_uses))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("enable two-factor login", "disable two-factor login"),
        ("enabling the feature", "disabling the feature"),
        ("cancel within 3 days", "cancel within 30 days"),
        ("cancel within three days", "cancel within ten days"),
        ("can I get a refund", "can I not get a refund"),
        ("the app works", "the app doesn't work"),
        ("is it before noon", "is it after noon"),
        ("convert dollars to euros", "convert euros to dollars"),
        ("what is the capital of france", "what is the capital of germany"),
        ("1+1?", "21+1?"),
        ("what is 1 + 1", "what is 21 + 1"),
    ],
)
def test_near_misses_stay_apart_whatever_the_cosine_says(one: str, other: str) -> None:
    assert near_miss(one, other)
    assert _group(one, other) == [[0], [1]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("How do I reset my password?", "how do i reset my password"),
        ("How do I reset my password?", "How can I reset my password please"),
        ("what  is\nthe refund policy", "What is the refund policy?!"),
    ],
)
def test_the_same_question_in_other_clothes_is_one_intent(one: str, other: str) -> None:
    assert _group(one, other) == [[0, 1]]


def test_scopes_never_mix() -> None:
    asked = [
        QuestionUse(0, "acme", "What is my account balance?", 5),
        QuestionUse(1, "beta", "What is my account balance?", 5),
    ]
    found = intents(asked, HashingEmbedder(), 0.9, 1)
    assert [intent.members for intent in found] == [[0], [1]]
    assert found[0].intent_hash != found[1].intent_hash


def test_the_scope_of_a_question_is_its_system_prompt_its_tools_and_its_template_arguments() -> None:
    asked = {"role": "user", "content": "Where is the office?"}
    tool = {"type": "function", "function": {"name": "find"}}
    bodies = [
        PromptBody(messages=[asked]),
        PromptBody(messages=[{"role": "system", "content": "Be brief."}, asked]),
        PromptBody(messages=[{"role": "system", "content": "Be kind."}, asked]),
        PromptBody(messages=[asked], tools=[tool]),
        PromptBody(messages=[asked], template_args={"enable_thinking": False}),
    ]
    scopes = {found.scope_sha256 for body in bodies if (found := question(body)) is not None}
    assert len(scopes) == len(bodies)


def test_a_wording_joins_the_closest_of_those_that_it_may_join() -> None:
    texts = (
        "How do I enable the export?",
        "How do I disable the export?",
        "Could you tell me how to enable the export?",
    )
    assert _group(*texts) == [[0, 2], [1]]


def test_a_high_threshold_keeps_looser_wordings_apart() -> None:
    texts = ("reset my password", "how would you reset the password for us please")
    assert _group(*texts, threshold=0.7) == [[0, 1]]
    assert _group(*texts, threshold=0.999) == [[0], [1]]


def test_the_most_used_wording_is_canonical_and_rare_intents_are_left_out() -> None:
    asked = [
        QuestionUse(0, "s", "how can i reset my password", 1),
        QuestionUse(1, "s", "How do I reset my password?", 7),
        QuestionUse(2, "s", "tell me a joke", 1),
    ]
    (found,) = intents(asked, HashingEmbedder(), 0.9, 2)
    assert (found.canonical, found.members, found.uses) == ("How do I reset my password?", [1, 0], 8)


def test_the_lexicon_joins_terms() -> None:
    embedder = HashingEmbedder(lexicon=Lexicon({"vpn": "virtual private network"}))
    asked = [QuestionUse(0, "s", "set up the VPN", 2), QuestionUse(1, "s", "set up the virtual private network", 1)]
    assert [intent.members for intent in intents(asked, embedder, 0.99, 1)] == [[0, 1]]


def test_documents_and_empty_texts_are_no_questions() -> None:
    assert _group("word " * 400, "?!", "  ") == []


def test_a_question_stays_out_of_representations() -> None:
    assert "secret" not in repr(Intent("s", "my secret question", [0], 1))
