"""What an identity digest stands for, remembered so that invalidation finds it by model or revision later (spec 1.2).

A digest cannot be turned back, and the fleet file of today no longer names yesterday's revision.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

import redis
from pydantic import BaseModel, ValidationError

from warmup_tasks.identity import EmbedderIdentity, ServingIdentity, identity_record_key
from warmup_tasks.items import KINDS
from warmup_tasks.serving.connection import store_errors

IdentityT = TypeVar("IdentityT", bound=BaseModel)
REMEMBERED_FOR = timedelta(days=1, seconds=max(rules.ttl_s or 0 for rules in KINDS.values()))


class IdentityBook:
    """Identities by digest, of models and embedders. Each is remembered longer than any value that was made with it."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def remember(self, identities: Sequence[ServingIdentity | EmbedderIdentity]) -> None:
        """Keep identities, evidence included; a second call renews their time."""
        with store_errors("remembering identities"), self._client.pipeline(transaction=False) as pipe:
            for identity in identities:
                pipe.set(identity_record_key(identity.digest()), identity.model_dump_json(), ex=REMEMBERED_FOR)
            pipe.execute()

    def recall(self, identity_digest: str) -> ServingIdentity | None:
        """Return the serving identity of that digest, or None when nobody remembers it."""
        return self._recall(identity_digest, ServingIdentity)

    def recall_embedder(self, identity_digest: str) -> EmbedderIdentity | None:
        """Return the embedder of that digest, or None when nobody remembers it."""
        return self._recall(identity_digest, EmbedderIdentity)

    def _recall(self, identity_digest: str, kind: type[IdentityT]) -> IdentityT | None:
        with store_errors("recalling an identity"):
            raw = self._client.get(identity_record_key(identity_digest))
        if raw is None:
            return None
        try:
            return kind.model_validate_json(raw)
        except ValidationError:
            return None
