"""Logged requests as accesses: block hashes where the log has them, else blocks of its own prompts.

Token ids are cut into blocks as an engine cuts them. Text whose tokens nobody told is cut every ``BYTES_PER_TOKEN``
bytes a token: reuse then shows at the right places, its length in tokens only roughly; the account says so.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake.store import Lake
from warmup_tasks.replay.accesses import Accesses, Floats, Ints, Names
from warmup_tasks.resources import sql

BYTES_PER_TOKEN = 4


class Basis(StrEnum):
    """What the blocks are made of."""

    BLOCK_HASHES = "block hashes of the log"
    PROMPTS = "token ids of the prompts, or their text at 4 bytes a token"


@dataclass(frozen=True, slots=True, eq=False)
class LoggedAccesses:
    """A log's accesses, what they are made of, and what the log says of each request (NaN: nothing).

    ``requests_left_out`` counts requests without hashes and prompt, truncated ones, those without a whole block, and
    those whose blocks are of another kind or size; embedding requests are no part of it.
    """

    accesses: Accesses
    basis: Basis
    requests_left_out: int
    cached_tokens: Floats
    ttft_ms: Floats


def read_accesses(
    lake: Lake,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    block_tokens: int = 16,
    requests: pa.Table | None = None,
) -> LoggedAccesses:
    """Return the requests of the lake that came in [since, until).

    Where any request has block hashes, those with the commonest block size are taken and prompts without are left out.

    Args:
        lake: holds ``requests/<day>``.
        since: UTC; None: from the first.
        until: UTC; None: to the last.
        block_tokens: tokens a block, for prompts; hashes bring their own.
        requests: these rows instead of all of the lake's, with the columns of ``requests``.

    Raises:
        ConfigurationError: no request has block hashes or a prompt.
    """
    refs = [f"requests/{day}:requests" for day in lake.partitions("requests")]
    bounds = {"since": since or datetime.min.replace(tzinfo=UTC), "until": until or datetime.max.replace(tzinfo=UTC)}
    source: pa.Table | list[str] = refs if requests is None else requests
    table = lake.query(sql("replay/accesses"), {"requests": source}, bounds) if len(source) else None
    if table is None or table.num_rows == 0:
        raise ConfigurationError("replay: the log holds no request with block hashes or a prompt")
    has_hashes = pc.is_valid(table["block_hashes"])
    if pc.any(has_hashes).as_py():
        sizes = pc.value_counts(table.filter(has_hashes)["block_tokens"]).to_pylist()
        block_tokens = max(sizes, key=lambda size: (size["counts"], -(size["values"] or 0)))["values"] or block_tokens
        is_ours = pc.and_(has_hashes, pc.equal(pc.fill_null(table["block_tokens"], block_tokens), block_tokens))
        rows, basis = table.filter(is_ours), Basis.BLOCK_HASHES
        names, lengths = _hashes(rows["block_hashes"])
    else:
        rows, basis = table, Basis.PROMPTS
        names, lengths = _prompt_blocks(rows["body_json"].to_pylist(), block_tokens)
    return _logged(rows, basis, names, lengths, block_tokens, table["requests"][0].as_py())


def _logged(
    rows: pa.Table, basis: Basis, names: Names, lengths: Ints, block_tokens: int, requests: int
) -> LoggedAccesses:
    is_whole = lengths > 0
    rows = rows.filter(pa.array(is_whole))
    prompt_tokens = _floats(rows["input_tokens"])
    whole = lengths[is_whole]
    accesses = Accesses.of_arrays(
        names,
        whole,
        rows["time_us"].to_numpy() / 1e6,
        block_tokens=block_tokens,
        prompt_tokens=np.where(np.isnan(prompt_tokens), whole * block_tokens, prompt_tokens).astype(np.int64),
        scopes=rows["scope"].to_numpy().astype(np.int64),
    )
    told = (_floats(rows[name]) for name in ("cached_tokens", "ttft_ms"))
    return LoggedAccesses(accesses, basis, requests - rows.num_rows, *told)


def _hashes(column: pa.ChunkedArray) -> tuple[Names, Ints]:
    lists = column.combine_chunks()
    flat = lists.flatten().to_numpy(zero_copy_only=False).astype(np.uint64)
    return flat, pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)


def _prompt_blocks(bodies: list[str], block_tokens: int) -> tuple[Names, Ints]:
    blocks = [_block_names(orjson.loads(body), block_tokens) for body in bodies]
    lengths = np.fromiter((len(names) for names in blocks), np.int64, len(blocks))
    return np.fromiter(chain.from_iterable(blocks), np.uint64, int(lengths.sum())), lengths


def _block_names(body: dict[str, Any], block_tokens: int) -> list[int]:
    """Return the chained hashes of a prompt's whole blocks; its last token is always computed anew."""
    if body.get("token_ids") is not None:
        data, width = np.asarray(body["token_ids"][:-1], np.int32).tobytes(), 4 * block_tokens
    else:
        said = body.get("messages") or [body.get("prompt") or ""]
        parts = [body.get("tools"), body.get("template_args"), *said]
        data, width = b"\n".join(orjson.dumps(part) for part in parts if part), BYTES_PER_TOKEN * block_tokens
    names, parent = [], b""
    for start in range(0, len(data) - width + 1, width):
        parent = xxhash.xxh3_64_digest(parent + data[start : start + width])
        names.append(int.from_bytes(parent, "big"))
    return names


def _floats(column: pa.ChunkedArray) -> Floats:
    return np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False), np.float64)
