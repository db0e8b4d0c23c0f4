"""A release: what is replaced by which version, and how the fleet is declared with it (spec 1.2, 1.3).

Types and their pure rules. Until the fleet file itself says the new version, readers and other runs go by the old one:
a release declares it for its own runs alone, so a release that fails leaves the old identity as it was.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleet_file import AdapterSpec, FleetFile
from warmup_tasks.items import ItemKind, PlanRow
from warmup_tasks.settings import Strict, validate

_ANSWERS = (ItemKind.RESPONSE, ItemKind.QA_PAIR)


class Changed(StrEnum):
    """What can be replaced."""

    MODEL = "model"
    ADAPTER = "adapter"
    EMBEDDER = "embedder"
    LEXICON = "lexicon"


class Change(Strict):
    """One thing that is replaced. A form, an asset event's extra and an upstream DAG all say these fields."""

    what: Changed = Field(Changed.MODEL, description="What is replaced.")
    name: str = Field("", description="Model as served, adapter, or embedder; empty: the fleet's only one.")
    version: str = Field("", description="What comes: weights revision, adapter version, embedder or lexicon revision.")
    path: str = Field("", description="Of an adapter: where its new version lies; empty: where the fleet file says.")
    canary: str = Field("", description="Replica that goes first; empty: the first that serves it.")
    needs_approval: bool = Field(False, description="Wait for a person between the canary and the other replicas.")

    @model_validator(mode="after")
    def _says_what_comes(self) -> Self:
        if not self.version:
            raise ValueError("version: say which version comes")
        if self.what is Changed.ADAPTER and not self.name:
            raise ValueError("name: say which adapter")
        if self.path and self.what is not Changed.ADAPTER:
            raise ValueError("path: only an adapter has one")
        return self

    def declared(self, fleet: FleetFile) -> FleetFile:
        """Return the fleet as it is declared with this change.

        Raises:
            ConfigurationError: the fleet file does not list what is replaced.
        """
        match self.what:
            case Changed.MODEL:
                old = fleet.model(self._model(fleet))
                new = old.model_copy(update={"weights_revision": self.version})
                return _with(fleet, models=[new if model is old else model for model in fleet.models])
            case Changed.ADAPTER:
                spec = self._adapter(fleet)
                comes = spec.model_copy(update={"version": self.version, "path": self.path or spec.path})
                return _with(fleet, adapters=[comes if adapter is spec else adapter for adapter in fleet.adapters])
            case Changed.EMBEDDER | Changed.LEXICON:
                if self.name not in ("", fleet.embedder.embedder):
                    raise ConfigurationError(f"name: the fleet's embedder is {fleet.embedder.embedder!r}")
                field = "revision" if self.what is Changed.EMBEDDER else "lexicon_version"
                return _with(fleet, embedder=fleet.embedder.model_copy(update={field: self.version}))

    def model_of(self, fleet: FleetFile) -> str | None:
        """Return the base model that serves what is replaced; None: the change reaches all models."""
        if self.what is Changed.MODEL:
            return self._model(fleet)
        return self._adapter(fleet).base_model if self.what is Changed.ADAPTER else None

    def _model(self, fleet: FleetFile) -> str:
        name = self.name or (fleet.models[0].name if len(fleet.models) == 1 else "")
        if not name:
            raise ConfigurationError("name: say which model; the fleet has several")
        return fleet.model(name).name

    def _adapter(self, fleet: FleetFile) -> AdapterSpec:
        spec = fleet.adapter(self.name)
        if spec is None:
            known = ", ".join(adapter.name for adapter in fleet.adapters)
            raise ConfigurationError(f"name: no adapter {self.name!r} in the fleet file; known: {known or 'none'}")
        return spec


class Release(Strict):
    """All changes of one release: several events may set off one run. The last word on one thing counts."""

    changes: list[Change] = Field(min_length=1)

    @classmethod
    def of(cls, events: Iterable[dict[str, object]], what: str) -> Self:
        """Return the release that events or a form describe.

        Args:
            events: fields of :class:`Change` → value, oldest first.
            what: where they stand, for the message.

        Raises:
            ConfigurationError: a field is refused; the message names it.
        """
        found = [validate(event, Change, what) for event in events]
        return cls(changes=list({(change.what, change.name): change for change in found}.values()))

    @property
    def needs_approval(self) -> bool:
        """Whether a person decides between the canary and the other replicas."""
        return any(change.needs_approval for change in self.changes)

    def declared(self, fleet: FleetFile) -> FleetFile:
        """Return the fleet as it is declared with all changes."""
        for change in self.changes:
            fleet = change.declared(fleet)
        return fleet

    def models(self, fleet: FleetFile) -> list[str]:
        """Return the models whose items are planned anew; empty: all."""
        reached = [change.model_of(fleet) for change in self.changes]
        return [] if None in reached else sorted({model for model in reached if model is not None})

    def replicas(self, fleet: FleetFile) -> list[str]:
        """Return the replicas that the release reaches, in the fleet's order."""
        models = self.models(fleet)
        return [replica.name for replica in fleet.replicas if not models or replica.model in models]

    def canary(self, fleet: FleetFile) -> str | None:
        """Return the replica that goes first; None where nothing on a replica is replaced.

        Raises:
            ConfigurationError: a canary is named that does not serve what is replaced.
        """
        reached = self.replicas(fleet)
        named = next((change.canary for change in self.changes if change.canary), None)
        if named is not None and named not in reached:
            raise ConfigurationError(
                f"canary: {named!r} does not serve what is replaced; these do: {', '.join(reached)}"
            )
        if all(change.model_of(fleet) is None for change in self.changes):
            return None
        return named or next(iter(reached), None)

    def spares(self, row: PlanRow) -> bool:
        """Say whether a release leaves an item as it is, though it is of a model that is planned anew.

        A retrained adapter voids its own answers, not those of its base model or of other adapters (spec 2.2). What
        lies in a replica's cache is planned as a whole, since warming one prefix may evict another.
        """
        if any(change.what is not Changed.ADAPTER for change in self.changes):
            return False
        return row.kind in _ANSWERS and row.adapter not in {change.name for change in self.changes}


def _with(fleet: FleetFile, **changes: object) -> FleetFile:
    return FleetFile.model_validate({**dict(fleet), **changes})
