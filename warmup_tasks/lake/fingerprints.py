"""What was last seen of each replica's weights and adapters, kept across runs in ``fingerprints/<replica>``.

Read and remembered here; what a difference means is decided where it is found.
"""

from warmup_tasks.items import Fingerprint
from warmup_tasks.lake.records import read_part
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.lake.store import Lake

DATASET = "fingerprints"


def read_fingerprints(lake: Lake, replica: str) -> dict[str, Fingerprint]:
    """Return subject → what was last seen, empty for a replica that nobody looked at."""
    return {seen.subject: seen for seen in read_part(lake, DATASET, replica, Fingerprint)}


def remember(lake: Lake, seen: Fingerprint) -> None:
    """Keep one fingerprint in place of the earlier one of its subject."""
    known = {**read_fingerprints(lake, seen.replica), seen.subject: seen}
    rows = [known[subject] for subject in sorted(known)]
    lake.publish(DATASET, seen.replica, {DATASET: to_table(rows, Fingerprint)})


def model_subject(model: str) -> str:
    """Return the subject of a base model's weights."""
    return f"model:{model}"


def adapter_subject(adapter: str, weights_revision: str | None) -> str:
    """Return the subject of an adapter's weights on top of a base model's: on top of others it answers otherwise."""
    return f"adapter:{adapter}" if weights_revision is None else f"adapter:{adapter}@{weights_revision}"
