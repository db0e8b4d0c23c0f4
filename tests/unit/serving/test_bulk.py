"""Bulk loading: columns become exactly the values that types would write; lost connections, refusals, the index."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis

from warmup_tasks.errors import ContractError, GiveUpError, RejectItemError
from warmup_tasks.identity import EmbedderIdentity, index_key
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.serving.blocks import EmbeddingFile, ValueBlocks, estimated_bytes
from warmup_tasks.serving.connection import connect, store_errors
from warmup_tasks.serving.invalidate import Invalidator
from warmup_tasks.serving.namespaces import NamespaceIndex, Reach
from warmup_tasks.serving.records import CHUNK
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import EmbeddingValue
from warmup_tasks.serving.wire import command, piped, set_commands

BY = EmbedderIdentity(embedder='ünï "c" code', revision="1", dimensions=8)
ROWS = 1700
TENANT = 'acme/eu "x"'


@pytest.fixture
def vectors():
    return np.random.default_rng(1).normal(size=(ROWS, BY.dimensions)).astype("<f4")


def columns(vectors, kind="list", count=ROWS, **changes):
    if kind == "list":
        vector = pa.FixedSizeListArray.from_arrays(pa.array(vectors[:count].ravel()), vectors.shape[1])
    else:
        width = vectors.shape[1] * 4
        buffers = [None, pa.py_buffer(np.ascontiguousarray(vectors[:count]))]
        vector = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, buffers)
    ids = [f"{n:032x}" for n in range(count)]
    table = {"item_id": ids, "prompt_sha256": [f"{n:064x}" for n in range(count)], "vector": vector}
    return pa.table({**table, **changes})


def send(client, packed):
    with piped(client, 10) as pipe:
        pipe.send(packed, answers=1)
        pipe.settle()


@pytest.fixture
def typed(vectors, now):
    return [
        EmbeddingValue.of(v, BY, item_id=f"{n:032x}", tenant=TENANT, prompt_sha256=f"{n:064x}", created_at=now)
        for n, v in enumerate(vectors)
    ]


@pytest.mark.parametrize("kind", ["list", "binary"])
def test_a_file_loads_as_the_very_values_that_types_write(redis_client, tmp_path, vectors, typed, now, kind):
    path = tmp_path / "e.parquet"
    pq.write_table(columns(vectors, kind), path, row_group_size=700)
    file = EmbeddingFile(path, BY, tenant=TENANT, created_at=now)
    report = ValueStore(redis_client).load(file, now)
    assert (report.written, report.resumed, len(file)) == (ROWS, 0, ROWS)
    assert report.estimated_bytes == sum(map(estimated_bytes, typed))
    for value in typed[:: ROWS // 20]:
        assert redis_client.get(value.key) == value.encode()
        assert ValueStore(redis_client).get(value.key) == value
        assert 0 < redis_client.ttl(value.key) <= 24 * 3600
    assert redis_client.dbsize() == ROWS + 2


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda t: t.drop_columns(["vector"]), ContractError, "needs the columns vector"),
        (lambda t: t.set_column(2, "vector", pa.array([[1.0]] * ROWS)), ContractError, "fixed-size list of float32"),
        (lambda t: columns(np.zeros((ROWS, 4), "<f4")), RejectItemError, "8 dimensions, the file's vectors have 4"),
        (lambda t: t.set_column(0, "item_id", pa.array(["No Hex!"] * ROWS)), ContractError, "item_id"),
        (lambda t: t.set_column(1, "prompt_sha256", pa.nulls(ROWS, pa.string())), ContractError, "prompt_sha256"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_embeddings_is_refused_and_nothing_written(
    redis_client, tmp_path, vectors, now, change, error, says
):
    path = tmp_path / "e.parquet"
    pq.write_table(change(columns(vectors)), path)
    with pytest.raises(error, match=says):
        ValueStore(redis_client).load(EmbeddingFile(path, BY, tenant=None, created_at=now), now)
    assert list(redis_client.scan_iter("*emb:*")) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_no_number_is_refused(redis_client, tmp_path, vectors, now, bad):
    vectors[3, 2] = bad
    path = tmp_path / "e.parquet"
    pq.write_table(columns(vectors), path)
    with pytest.raises(RejectItemError, match="no finite number"):
        ValueStore(redis_client).load(EmbeddingFile(path, BY, tenant=None, created_at=now), now)


def test_large_but_finite_vectors_pass(tmp_path, vectors, now):
    path = tmp_path / "e.parquet"
    pq.write_table(columns(np.full_like(vectors, 3e38)), path)
    assert sum(map(len, EmbeddingFile(path, BY, tenant=None, created_at=now))) == ROWS


def test_a_connection_cut_by_the_server_goes_on_behind_what_was_acknowledged(redis_client, redis_url, typed, now):
    with connect(redis_url) as admin:
        cut = []

        def cut_once(sent: int) -> None:
            if sent == 2 * CHUNK and not cut:
                others = [c for c in admin.client_list(_type="normal") if c["id"] != str(admin.client_id())]
                cut.extend(admin.client_kill_filter(_id=c["id"]) for c in others)

        report = ValueStore(redis_client).put_many(typed, now, on_progress=cut_once)
        assert sum(cut) >= 1
        assert (report.written, report.resumed) == (ROWS, 1)
        assert ValueStore(admin).existing([value.key for value in typed]) == {value.key for value in typed}


def test_lives_in_other_namespaces_and_without_a_life(redis_client, make_response, make_embedding, typed, now):
    mixed = [*typed[:3], make_response("a"), make_response("a", tenant="acme"), make_embedding("b")]
    blocks = list(ValueBlocks([*mixed, *mixed]))
    assert sum(map(len, blocks)) == len(mixed)
    assert len(blocks) == 4
    assert sorted(key for block in blocks for key in block.keys) == sorted(value.key for value in mixed)
    assert ValueStore(redis_client).put_many([], now).written == 0


def test_keys_enter_the_index_by_the_block_and_leave_it_whole(redis_client, typed, now):
    ValueStore(redis_client).put_many(typed, now)
    prefix = typed[0].prefix
    assert redis_client.zcard(index_key(prefix)) == -(-ROWS // CHUNK)
    assert 0 < redis_client.ttl(index_key(prefix)) <= 25 * 3600
    found = [key for keys in NamespaceIndex(redis_client).keys(prefix) for key in keys]
    assert sorted(found) == sorted(value.key for value in typed)
    reach = Reach(embedder=BY.embedder)
    assert Invalidator(redis_client).preview(reach).values == {"embedding": ROWS}
    assert Invalidator(redis_client).invalidate(reach).values == {"embedding": ROWS}
    assert list(redis_client.scan_iter()) == []


def test_packed_commands_are_those_of_the_client(redis_client):
    suffixes, values = pa.array([b"a", b"bb"]), pa.array([b"x\r\n-y", b""])
    with piped(redis_client, 1) as pipe:
        pipe.send(set_commands("k:", suffixes, [pa.scalar(b"<"), values], 50), answers=2)
        pipe.send(command(b"PEXPIRE", b"k:a", b"90000"), set_commands("n:", suffixes, [values], None), answers=3)
        pipe.settle()
        assert (pipe.sent, pipe.answered, pipe.due) == (5, 5, 0)
    assert redis_client.mget("k:a", "k:bb", "n:a", "n:bb") == [b"<x\r\n-y", b"<", b"x\r\n-y", b""]
    assert (redis_client.ttl("k:a"), redis_client.ttl("k:bb"), redis_client.ttl("n:a")) == (90, 50, -1)
    redis_client.delete("n:a", "n:bb")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((b"INCR", b"text"), redis.ResponseError),
        ((b"NO SUCH", b"a secret"), redis.ResponseError),
    ],
)
def test_a_refusal_is_raised_without_what_it_quotes(redis_client, words, error):
    redis_client.set("text", "a secret", ex=60)
    with pytest.raises(error) as refused:
        send(redis_client, command(*words))
    assert "secret" not in str(refused.value)
    assert redis_client.ping()


def test_no_memory_left_is_told_from_other_refusals():
    one = set_commands("k:", pa.array([b"a"]), [pa.array([b"x"])], 9)
    with RedisServer(maxmemory_bytes=1) as server, connect(server.url) as client:
        with pytest.raises(GiveUpError, match="raise maxmemory"), store_errors("writing"):
            send(client, one)
        assert client.dbsize() == 0
