"""The lake keeps what it promises: immutable versions, manifests whole or absent, one number a publisher."""

import json
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from warmup_tasks.errors import ContractError
from warmup_tasks.lake import Lake
from warmup_tasks.lake.manifest import Ref

TABLE = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "s": ["x", None, "z"]})
OTHER = pa.table({"a": pa.array([9], pa.int64()), "s": ["q"]})


@pytest.fixture(params=["local", "memory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "lake")
        return
    name = f"/lake-{uuid.uuid4().hex}"
    yield f"memory:/{name}"
    memory = fsspec.filesystem("memory")
    if memory.exists(name):
        memory.rm(name, recursive=True)


@pytest.fixture
def lake(uri: str) -> Lake:
    return Lake(uri)


def test_what_is_published_is_read_back_with_its_meta(lake: Lake, uri: str) -> None:
    ref = lake.publish("plan", "r1.gpu", {"plan": TABLE}, {"shards": {"a": ["s1"]}})
    assert ref == "plan/r1.gpu@000001"
    for name in (ref, "plan/r1.gpu", "plan/r1.gpu@1"):
        assert Lake(uri).read(name, "plan").equals(TABLE)
    assert lake.meta(ref) == {"shards": {"a": ["s1"]}}
    assert lake.rows(ref, "plan") == 3
    assert lake.latest("plan", "r1.gpu") == ref
    assert lake.partitions("plan") == ["r1.gpu"]


def test_nothing_is_there_before_it_is_published(lake: Lake) -> None:
    assert lake.latest("plan", "r1") is None
    assert lake.partitions("plan") == []
    with pytest.raises(ContractError, match="plan/r1 is not in the lake"):
        lake.read("plan/r1", "plan")


def test_a_version_or_table_that_does_not_exist_is_named(lake: Lake) -> None:
    lake.publish("plan", "r1", {"plan": TABLE})
    with pytest.raises(ContractError, match="plan/r1@000007 is not in the lake"):
        lake.read("plan/r1@000007", "plan")
    with pytest.raises(ContractError, match="has no table 'payloads'; it has plan"):
        lake.files("plan/r1", "payloads")


def test_equal_content_gives_the_same_reference_and_leaves_no_new_file(lake: Lake, uri: str) -> None:
    first = lake.publish("d", "p", {"t": TABLE}, {"k": 1})
    files = fsspec.core.url_to_fs(uri)[0].find(uri)
    in_pieces = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)])
    assert lake.publish("d", "p", {"t": in_pieces}, {"k": 1}) == first
    assert fsspec.core.url_to_fs(uri)[0].find(uri) == files


@pytest.mark.parametrize(("table", "meta"), [(OTHER, {"k": 1}), (TABLE, {"k": 2}), (TABLE.slice(0, 2), {"k": 1})])
def test_other_rows_or_other_meta_make_a_new_version_and_keep_the_old(lake: Lake, table: pa.Table, meta: dict) -> None:
    lake.publish("d", "p", {"t": TABLE}, {"k": 1})
    assert lake.publish("d", "p", {"t": table}, meta) == "d/p@000002"
    assert lake.read("d/p@000001", "t").equals(TABLE)
    assert lake.read("d/p", "t").equals(table)


def test_going_back_to_older_content_is_a_version_of_its_own(lake: Lake) -> None:
    for table in (TABLE, OTHER, TABLE):
        lake.publish("d", "p", {"t": table})
    assert lake.latest("d", "p") == "d/p@000003"
    assert lake.read("d/p", "t").equals(TABLE)


def test_an_empty_table_keeps_its_columns(lake: Lake) -> None:
    ref = lake.publish("d", "p", {"t": TABLE.schema.empty_table()})
    assert lake.read(ref, "t").schema == TABLE.schema
    assert lake.query("select count(*) as n from t", {"t": [f"{ref}:t"]}).to_pylist() == [{"n": 0}]


def test_a_partition_without_tables_carries_meta_alone(lake: Lake) -> None:
    assert lake.meta(lake.publish("d", "p", {}, {"k": "v"})) == {"k": "v"}


def test_batches_give_the_same_content_as_the_table(lake: Lake) -> None:
    big = pa.table({"a": pa.array(range(10_000), pa.int64())})
    first = lake.publish("d", "p", {"t": big})
    reader = pa.RecordBatchReader.from_batches(big.schema, big.to_batches(max_chunksize=777))
    assert lake.publish("d", "p", {"t": reader}) == first


def test_concurrent_publishers_get_a_number_each_and_lose_nothing(lake: Lake, uri: str) -> None:
    publishers = 8
    barrier, refs = threading.Barrier(publishers), []

    def publish(number: int) -> None:
        table = pa.table({"a": [number]})
        barrier.wait()
        refs.append((Lake(uri).publish("d", "p", {"t": table}), number))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(publishers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ref for ref, _ in refs) == [f"d/p@{number:06d}" for number in range(1, publishers + 1)]
    assert all(lake.read(ref, "t").to_pylist() == [{"a": number}] for ref, number in refs)


def test_publishing_onto_a_parent_that_is_no_longer_the_newest_publishes_nothing(lake: Lake) -> None:
    parent = lake.publish_onto(None, "d", "p", {"t": TABLE})
    assert parent == "d/p@000001"
    assert lake.publish_onto(None, "d", "p", {"t": OTHER}) is None
    lake.publish("d", "p", {"t": OTHER})
    assert lake.publish_onto(parent, "d", "p", {"t": TABLE.slice(1)}) is None
    assert lake.latest("d", "p") == "d/p@000002"
    assert lake.publish_onto("d/p@000002", "d", "p", {"t": TABLE}) == "d/p@000003"


def test_what_an_interrupted_publisher_left_is_invisible_and_collected(lake: Lake, uri: str) -> None:
    ref = lake.publish("d", "p", {"t": TABLE})
    fs, root = fsspec.core.url_to_fs(uri)
    orphan = f"{root}/d/p/data/t-orphan.parquet"
    fs.pipe_file(orphan, b"half a file")
    assert lake.read("d/p", "t").equals(TABLE)
    now = datetime.now(UTC)
    assert lake.collect(now - timedelta(hours=1)) == []
    assert lake.collect(now + timedelta(hours=1)) == ["d/p/data/t-orphan.parquet"]
    assert not fs.exists(orphan)
    assert lake.read(ref, "t").equals(TABLE)


def test_a_manifest_of_another_schema_version_is_refused(lake: Lake, uri: str) -> None:
    lake.publish("d", "p", {"t": TABLE})
    fs, root = fsspec.core.url_to_fs(uri)
    path = f"{root}/d/p/manifests/000001.json"
    fs.pipe_file(path, json.dumps({"schema_version": 2, "parts": []}).encode())
    with pytest.raises(ContractError, match="schema version 2, this library reads 1"):
        lake.read("d/p", "t")
    fs.pipe_file(path, b"{")
    with pytest.raises(ContractError, match="no manifest of schema version 1"):
        lake.read("d/p", "t")


def test_a_query_joins_partitions_and_arrow_tables_with_bound_parameters(lake: Lake) -> None:
    for day, table in (("2026-11-25", TABLE), ("2026-11-26", OTHER)):
        lake.publish("d", day, {"t": table})
    statement = "select t.a * $factor as b, e.name from t join e on e.a = t.a where t.a >= $least order by b"
    names = pa.table({"a": [3, 9], "name": ["three'; drop table t; --", "nine"]})
    found = lake.query(statement, {"t": ["d/2026-11-25:t", "d/2026-11-26@1:t"], "e": names}, {"factor": 2, "least": 2})
    assert found.to_pylist() == [{"b": 6, "name": "three'; drop table t; --"}, {"b": 18, "name": "nine"}]


def test_readers_query_while_others_publish(lake: Lake, uri: str) -> None:
    lake.publish("d", "p", {"t": TABLE})
    with lake.connect() as reading:
        reading.read_parquet(lake.files("d/p", "t")).create_view("t")
        Lake(uri).publish("d", "p", {"t": OTHER})
        assert reading.sql("select count(*) from t").fetchall() == [(3,)]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "a@1"])
def test_names_that_are_no_folder_are_refused(lake: Lake, name: str) -> None:
    with pytest.raises(ContractError):
        lake.publish("d", name, {"t": TABLE})


@pytest.mark.parametrize("text", ["d", "d/p@", "d/p@x", "/p", "d/"])
def test_references_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ContractError):
        Ref.parse(text)


def test_several_readers_are_several_files_and_one_table(lake: Lake) -> None:
    def readers() -> list[pa.RecordBatchReader]:
        tables = [pa.table({"n": list(range(first, first + 3))}) for first in (0, 3, 6)]
        return [pa.RecordBatchReader.from_batches(part.schema, part.to_batches()) for part in tables]

    ref = lake.publish("d", "p", {"t": readers()})
    assert (len(lake.files(ref, "t")), lake.rows(ref, "t")) == (3, 9)
    assert lake.read(ref, "t")["n"].to_pylist() == list(range(9))
    assert lake.publish("d", "p", {"t": readers()}) == ref
    assert lake.query("select sum(n) as n from x", {"x": ["d/p:t"]}).to_pylist() == [{"n": 36}]


def test_long_rows_make_short_row_groups_however_they_come_in(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmup_tasks.lake.store._ROW_GROUP_BYTES", 1000)
    table = pa.table({"text": ["x" * size for size in (400, 500, 200, 5000, 1, 2)], "n": range(6)})
    refs = [lake.publish("d", f"p{size}", {"t": pa.Table.from_batches(table.to_batches(size))}) for size in (1, 2, 6)]
    for ref in refs:
        (file,) = lake.open_files(ref, "t")
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        assert groups == [2, 1, 1, 2]
        assert lake.read(ref, "t").equals(table)
