"""Who uses the made-up service: tenants of very different size, each with its way of asking.

Here live their system prompts, tools, adapters, salts and questions; when they ask is the business of ``traffic.py``.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from random import Random
from typing import Any

from warmup_tasks.identity import digest
from warmup_tasks.sources.sample_log import words

MODEL = "demo-chat"
"""The one base model of the demo log."""

ADAPTERS = ("adapter-a", "adapter-b")
"""The adapters that some tenants' requests name."""


class Head(StrEnum):
    """What stands before a system prompt's rules."""

    STABLE = "stable"
    CLOCK = "clock"
    DATE = "date"
    NONE = "no system prompt"


class Manner(StrEnum):
    """How a tenant asks: programs send single questions behind long instructions, people chat behind short ones."""

    PROGRAM = "program"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. ``weight`` is its share of its region's traffic, before normalising."""

    name: str
    region: str
    weight: float
    head: Head = Head.STABLE
    manner: Manner = Manner.PROGRAM
    rules: str = field(default="", repr=False)
    tools: list[dict[str, Any]] = field(default_factory=list, repr=False)
    questions: list[words.Question] = field(default_factory=list, repr=False)
    adapter: str | None = None
    cache_salt: str | None = None
    template_args: dict[str, Any] | None = None

    def system(self, moment: datetime) -> str:
        """Return the system prompt as sent at a moment."""
        if self.head is Head.CLOCK:
            return f"Current time is {moment:%H:%M:%S}. Today's date is {moment:%Y-%m-%d}.\n{self.rules}"
        if self.head is Head.DATE:
            return f"Today's date is {moment:%Y-%m-%d}.\n{self.rules}"
        return self.rules


_BIG = (("kirin-bank", "asia", 30.0), ("nordwind/eu", "europe", 24.0))
_SMALL = (
    ("hana-travel", "asia"), ("pacific@home", "asia"), ("merlion-edu", "asia"), ("sakura-care", "asia"),
    ("tiger-post", "asia"), ("alpen-strom", "europe"), ("_default", "europe"), ("lago-mobili", "europe"),
    ("gare-services", "europe"), ("polder-auto", "europe"), ("fjord-hosting", "europe"),
    ("prairie-health", "americas"), ("maple-rentals", "americas"), ("andes-learn", "americas"),
    ("harbor-legal", "americas"), ("mesa-power", "americas"), ("bayou-parcels", "americas"),
    ("short-questions", "americas"),
)  # fmt: skip
_CHATTING = (
    "nordwind/eu", "merlion-edu", "pacific@home", "gare-services", "polder-auto", "maple-rentals", "andes-learn",
)  # fmt: skip
_HEADS = {"sakura-care": Head.CLOCK, "alpen-strom": Head.DATE, "short-questions": Head.NONE}
_ADAPTERS = {"hana-travel": ADAPTERS[0], "lago-mobili": ADAPTERS[0], "harbor-legal": ADAPTERS[1]}
_SALTED = ("merlion-edu", "prairie-health")
_TEMPLATE_ARGS = {"fjord-hosting": {"enable_thinking": False}}


def make_tenants(random: Random) -> list[Tenant]:
    """Return the tenants; the first two, a tenth of them, make most of the traffic."""
    weighed = [*_BIG, *((name, region, 6.0 / (rank + 1.5)) for rank, (name, region) in enumerate(_SMALL))]
    return [_tenant(random, name, region, weight) for name, region, weight in weighed]


def _tenant(random: Random, name: str, region: str, weight: float) -> Tenant:
    trade = random.choice(words.TRADES)
    head = _HEADS.get(name, Head.STABLE)
    opening = (
        f"You are the assistant of {name}, a company for {trade}. You help customers and colleagues with short, exact "
        "answers. The following rules hold for every conversation, in the order in which they stand here.\n"
    )
    manner = Manner.CHAT if name in _CHATTING else Manner.PROGRAM
    length = random.randrange(3_200, 6_200) if manner is Manner.PROGRAM else random.randrange(600, 1_350)
    return Tenant(
        name=name,
        region=region,
        weight=weight,
        head=head,
        manner=manner,
        rules="" if head is Head.NONE else opening + words.rules(random, trade, length),
        tools=words.tools(random, random.randint(2, 5)) if head is not Head.NONE and manner is Manner.PROGRAM else [],
        questions=words.questions(random, 14),
        adapter=_ADAPTERS.get(name),
        cache_salt=digest({"demo-salt": name})[:48] if name in _SALTED else None,
        template_args=_TEMPLATE_ARGS.get(name),
    )
