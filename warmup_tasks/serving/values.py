"""The typed values that the serving store holds (spec 1.2): embedding, default response, adapter entry, QA pair.

Here lives what a value is and how it becomes bytes. Each carries schema version, identity, tenant and creation time,
and knows its own key. Stored form: one line of JSON, for embeddings followed by the vector as little-endian float32.
Texts are private: they never show in a ``repr``. Reading and writing them lives in ``store.py``.
"""

import json
from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticSerializationError

from warmup_tasks.errors import ContractError, RejectItemError
from warmup_tasks.identity import (
    EmbedderIdentity,
    adapter_entry_key,
    embedding_key,
    namespace,
    qa_key,
    response_key,
)
from warmup_tasks.items import KINDS, ItemKind, Reason, Record
from warmup_tasks.serving.namespaces import Namespace

VALUE_SCHEMA = 1
_FLOAT32 = np.dtype("<f4")


class StoredValue(Record):
    """What every value carries. ``item_id`` names the item whose mark decides whether the value may be read."""

    kind: ClassVar[ItemKind]

    schema_version: int = VALUE_SCHEMA
    item_id: str
    tenant: str | None
    identity_digest: str
    created_at: datetime

    @property
    @abstractmethod
    def key(self) -> str:
        """The Redis key."""

    @property
    @abstractmethod
    def where(self) -> Namespace:
        """The namespace that the key lies in."""

    @property
    def prefix(self) -> str:
        """What the key begins with."""
        return namespace(self.tenant, self.identity_digest)

    @property
    def ttl_s(self) -> int | None:
        """How long the value lives; None until it is invalidated."""
        return KINDS[self.kind].ttl_s

    @property
    def place(self) -> tuple[str | int | None, ...]:
        """What values have in common that are written as one block: whatever :attr:`where` and TTL follow from."""
        return (self.kind, self.tenant, self.identity_digest)

    def encode(self) -> bytes:
        """Return the stored form."""
        return self._head()

    @classmethod
    def _from_parts(cls, head: dict[str, Any], tail: bytes) -> Self:
        if tail:
            raise ContractError(f"a stored {cls.kind} has {len(tail)} bytes that do not belong to it")
        return cls.model_validate(head)

    def _head(self, exclude: set[str] | None = None) -> bytes:
        try:
            fields = self.model_dump_json(exclude=exclude)
        except PydanticSerializationError:  # half a surrogate pair, as engines may send: no UTF-8, but JSON
            fields = json.dumps(self.model_dump(mode="json", exclude=exclude), separators=(",", ":"))
        return f'{{"kind":"{self.kind}",{fields[1:]}\n'.encode()


class EmbeddingValue(StoredValue):
    """The embedding of one prompt. ``vector`` is float32, little-endian, ``dimensions`` long."""

    kind: ClassVar[ItemKind] = ItemKind.EMBEDDING

    embedder: str
    embedder_revision: str
    prompt_sha256: str
    dimensions: int
    vector: bytes = Field(repr=False)

    @model_validator(mode="after")
    def _vector_has_dimensions(self) -> Self:
        if len(self.vector) != self.dimensions * _FLOAT32.itemsize:
            raise ValueError(f"{len(self.vector)} bytes are no vector of {self.dimensions} dimensions")
        return self

    @classmethod
    def of(
        cls,
        vector: Sequence[float] | npt.NDArray[np.floating[Any]],
        embedder: EmbedderIdentity,
        *,
        item_id: str,
        tenant: str | None,
        prompt_sha256: str,
        created_at: datetime,
    ) -> Self:
        """Return the value for a vector.

        Raises:
            RejectItemError: the vector does not have the embedder's dimensions, or holds a value that is no number.
        """
        array = np.asarray(vector, dtype=_FLOAT32)
        if array.shape != (embedder.dimensions,):
            raise RejectItemError(
                Reason.DIMENSION_MISMATCH,
                f"{embedder.embedder} has {embedder.dimensions} dimensions, the vector has shape {array.shape}",
            )
        if not np.isfinite(array).all():
            raise RejectItemError(Reason.DIMENSION_MISMATCH, "the vector holds a value that is no finite number")
        return cls(
            item_id=item_id,
            tenant=tenant,
            identity_digest=embedder.digest(),
            created_at=created_at,
            embedder=embedder.embedder,
            embedder_revision=embedder.revision,
            prompt_sha256=prompt_sha256,
            dimensions=embedder.dimensions,
            vector=array.tobytes(),
        )

    def array(self) -> npt.NDArray[np.float32]:
        """Return the vector, shape (dimensions,)."""
        return np.frombuffer(self.vector, dtype=_FLOAT32)

    @property
    def key(self) -> str:
        """``emb:{sha256(prompt)}`` in its namespace."""
        return embedding_key(self.tenant, self.identity_digest, self.prompt_sha256)

    @property
    def place(self) -> tuple[str | int | None, ...]:
        """The common place, at one embedder and revision."""
        return (*super().place, self.embedder, self.embedder_revision)

    @property
    def where(self) -> Namespace:
        """The namespace of the tenant at this embedder."""
        return Namespace(
            tenant=self.tenant,
            identity_digest=self.identity_digest,
            embedder=self.embedder,
            embedder_revision=self.embedder_revision,
        )

    def encode(self) -> bytes:
        """Return the stored form: the JSON line, then the vector."""
        return self._head(exclude={"vector"}) + self.vector

    @classmethod
    def _from_parts(cls, head: dict[str, Any], tail: bytes) -> Self:
        return cls.model_validate({**head, "vector": tail})


class _ModelValue(StoredValue):
    """A value that a served model made."""

    model: str
    adapter: str | None

    @property
    def place(self) -> tuple[str | int | None, ...]:
        """The common place, of one model and adapter."""
        return (*super().place, self.model, self.adapter)

    @property
    def where(self) -> Namespace:
        """The namespace of the tenant at this serving identity."""
        return Namespace(
            tenant=self.tenant, identity_digest=self.identity_digest, model=self.model, adapter=self.adapter
        )


class ResponseValue(_ModelValue):
    """The full model's answer at temperature 0 to an exact prompt."""

    kind: ClassVar[ItemKind] = ItemKind.RESPONSE

    prompt_sha256: str
    text: str = Field(repr=False)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def key(self) -> str:
        """``resp:{sha256(prompt)}`` in its namespace."""
        return response_key(self.tenant, self.identity_digest, self.prompt_sha256)


class QaValue(_ModelValue):
    """A frequent question of one intent with its answer."""

    kind: ClassVar[ItemKind] = ItemKind.QA_PAIR

    intent_hash: str
    question: str = Field(repr=False)
    answer: str = Field(repr=False)

    @property
    def key(self) -> str:
        """``qa:{intent_hash}`` in its namespace."""
        return qa_key(self.tenant, self.identity_digest, self.intent_hash)


class AdapterValue(_ModelValue):
    """An adapter's registry entry: which version lies under which path, as the engine's host sees it."""

    kind: ClassVar[ItemKind] = ItemKind.ADAPTER

    tenant: None = None
    adapter: str
    version: str
    path: str

    @property
    def key(self) -> str:
        """``lora:{model_id}:{adapter_name}`` in its namespace."""
        return adapter_entry_key(self.identity_digest, self.model, self.adapter)


TYPES: dict[ItemKind, type[StoredValue]] = {
    value.kind: value for value in (EmbeddingValue, ResponseValue, QaValue, AdapterValue)
}


def decode_value(raw: bytes) -> StoredValue:
    """Return a stored value.

    Raises:
        ContractError: the bytes are no value of this schema version.
    """
    head, _, tail = raw.partition(b"\n")
    try:
        fields = json.loads(head)
        kind = TYPES[ItemKind(fields.pop("kind"))]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ContractError("the stored bytes are no value of the serving store") from None
    if fields.get("schema_version") != VALUE_SCHEMA:
        raise ContractError(f"a stored {kind.kind} does not have schema version {VALUE_SCHEMA}")
    try:
        return kind._from_parts(fields, tail)  # noqa: SLF001 - the classes of this module share one format
    except ValidationError as error:
        fields_refused = ", ".join(sorted({str(part) for problem in error.errors() for part in problem["loc"][:1]}))
        raise ContractError(f"a stored {kind.kind} does not keep its contract: {fields_refused or 'vector'}") from None
