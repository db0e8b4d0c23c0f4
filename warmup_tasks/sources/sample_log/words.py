"""Sentences, questions and tool definitions from small word lists, chosen by a seeded generator.

Here lives text only: who says it, and when, is decided elsewhere.
"""

from random import Random
from typing import Any, NamedTuple

TRADES = ("banking", "travel booking", "electricity supply", "furniture retail", "health insurance", "car rental",
          "online teaching", "parcel delivery", "property management", "software hosting")  # fmt: skip
_SUBJECTS = ("a customer", "a new customer", "a returning customer", "somebody from support", "a business client",
             "a person who is not signed in", "a member of the family plan", "an account holder abroad")  # fmt: skip
_SITUATIONS = ("asks about an open invoice", "reports that a payment failed", "wants to change the delivery address",
               "has lost access to the account", "asks for a refund", "wants to cancel a contract early",
               "complains about a late parcel", "asks which documents are needed", "wants to speak to a person",
               "mentions an accident", "asks for the price of an upgrade", "cannot open the mobile app")  # fmt: skip
_ACTIONS = ("check the contract first", "confirm the date of birth", "look the order up by its number",
            "offer the callback form", "explain the notice period in plain words", "name the responsible team",
            "quote the price with tax", "ask for the meter reading", "summarise what was agreed so far",
            "open a ticket with priority two", "state when an answer can be expected",
            "mention the help page")  # fmt: skip
_LIMITS = ("never promise a date that the system does not show", "never repeat a full card number",
           "do not give legal advice", "do not compare with competitors", "keep the answer under six sentences",
           "answer in the language of the question", "do not mention internal tool names",
           "refuse politely when the request concerns another person's data",
           "say so when the information may be out of date", "round amounts to two decimals")  # fmt: skip
_REASONS = ("because contracts differ between regions", "since most complaints begin there",
            "as the regulator asks for it", "so that the next colleague can continue",
            "because the old tariff ended this year", "since mistakes here are expensive to undo")  # fmt: skip
_VERBS = ("update", "download", "cancel", "renew", "transfer", "check", "export", "print", "share", "extend")
_OBJECTS = ("annual statement", "delivery address", "travel insurance", "monthly invoice", "payment method",
            "customer card", "booking confirmation", "meter reading", "service contract", "guest account",
            "course certificate", "parking permit", "warranty form", "spending report")  # fmt: skip
_PLACES = ("the overview page", "Settings", "the documents tab", "My contracts", "the help centre", "the mobile app")
_PARAPHRASES = ("How can I {what}?", "What do I have to do to {what}?", "I would like to {what}, how does that work?")
_FOLLOW_UPS = ("Thanks. And what happens if I do that after the {day}th?", "Does that hold for my second contract?",
               "I see a different amount on page {day}, why is that?", "Could you send that to me in writing, please?",
               "My colleague says it takes {day} working days. Is that right?", "It shows error {day}, what now?",
               "And how much will that cost me from the {day}th on?", "Can I still change my mind within {day} days?",
               )  # fmt: skip
_TOOL_VERBS = ("lookup", "create", "cancel", "list", "estimate")
_TOOL_NOUNS = ("order", "invoice", "contract", "ticket", "appointment", "shipment")
_FIELD_NAMES = ("reference", "customer_number", "since", "language", "is_urgent", "amount", "currency", "note")

SAME_EVERYWHERE = "What is my account balance?"
OPPOSITES = ("How do I enable two-factor login?", "How do I disable two-factor login?")


class Question(NamedTuple):
    """A question that people ask again and again, its answer, and other words for it."""

    text: str
    answer: str
    paraphrases: tuple[str, ...]


def rules(random: Random, trade: str, characters: int) -> str:
    """Return numbered instructions for an assistant, about ``characters`` long."""
    lines: list[str] = []
    while sum(map(len, lines)) < characters:
        subject, situation = random.choice(_SUBJECTS), random.choice(_SITUATIONS)
        first, then = random.sample(_ACTIONS, 2)
        sentence = f"{len(lines) + 1}. When {subject} {situation}, {first}, then {then}"
        ending = random.choice((f", {random.choice(_REASONS)}.", f"; {random.choice(_LIMITS)}.", "."))
        heading = (
            f"\n## Section {len(lines) // 8 + 1}: {trade}, the {random.choice(_OBJECTS)}\n"
            if len(lines) % 8 == 0
            else ""
        )
        lines.append(f"{heading if len(lines) % 8 == 0 else ''}{sentence}{ending}")
    return "\n".join(lines)


def questions(random: Random, number: int) -> list[Question]:
    """Return questions with answers and paraphrases; three of them stand in every tenant's list."""
    found = [
        Question(SAME_EVERYWHERE, "I can show the balance once you are signed in: open the overview page.", ()),
        *(Question(text, f"Open Settings, then Security: {text[9:16].strip()} it there.", ()) for text in OPPOSITES),
    ]
    asked: set[str] = set()
    while len(found) < number:
        what = f"{random.choice(_VERBS)} my {random.choice(_OBJECTS)}"
        if what not in asked:
            asked.add(what)
            answer = (
                f"To {what.replace(' my ', ' your ')}, open {random.choice(_PLACES)}, choose the entry and confirm."
            )
            paraphrases = tuple(form.format(what=what) for form in _PARAPHRASES)
            found.append(Question(f"How do I {what}?", answer, paraphrases))
    return found


def follow_up(random: Random) -> str:
    """Return what somebody says in a later turn of a conversation."""
    return random.choice(_FOLLOW_UPS).format(day=random.randint(2, 28))


def answer(random: Random) -> str:
    """Return an assistant's answer of two or three sentences."""
    number = random.randint(1, 2)
    hints = (
        f"In {random.choice(_PLACES)} you can {random.choice(_VERBS)} the {random.choice(_OBJECTS)}."
        for _ in range(number)
    )
    return " ".join((f"Please note: {random.choice(_LIMITS)}.", *hints))


def details(random: Random, characters: int) -> str:
    """Return what somebody tells at length in a conversation, about ``characters`` long."""
    told: list[str] = []
    while sum(map(len, told)) < characters:
        told.append(
            f"On the {random.randint(1, 28)}th {random.choice(_SUBJECTS)} {random.choice(_SITUATIONS)}, "
            f"number {random.randint(1_000, 9_999)}, {random.choice(_REASONS)}."
        )
    return " ".join(told)


def tools(random: Random, number: int) -> list[dict[str, Any]]:
    """Return tool definitions; their keys stand in no particular order, as in real logs."""
    names = random.sample([f"{verb}_{noun}" for verb in _TOOL_VERBS for noun in _TOOL_NOUNS], number)
    return [_tool(random, name) for name in names]


def _tool(random: Random, name: str) -> dict[str, Any]:
    fields = random.sample(_FIELD_NAMES, random.randint(2, 4))
    properties = {field: {"type": "string", "description": f"The {field.replace('_', ' ')}."} for field in fields}
    parameters = {"type": "object", "required": fields[:1], "properties": properties}
    description = f"{name.replace('_', ' ').capitalize()}: {random.choice(_ACTIONS)}."
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
