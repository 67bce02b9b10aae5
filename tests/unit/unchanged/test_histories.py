"""Random histories of tables: a skipped model, and a cached result, are what a new build would be.

Other writers commit between any two calls: between the decision and the read, and between the read
and the record.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetPropertiesUpdate, SetSnapshotRefUpdate
from pyiceberg.types import LongType, NestedField

from dbt.adapters.iceberg_stream.catalog.catalogs import one_catalog
from dbt.adapters.iceberg_stream.catalog.metadata import NAME_MAPPING, name_mapping
from dbt.adapters.iceberg_stream.sessions.results import ResultCache
from dbt.adapters.iceberg_stream.sessions.store import ResultStore
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.unchanged.inputs import UnknownInputs, capture_inputs
from tests.unit.local_tables import (
    SCHEMA,
    commit,
    data_file,
    evolve,
    load,
    make_catalog,
    make_table,
)

TABLES = ("a", "b")
WIDE = Schema(*SCHEMA.fields, NestedField(3, "y", LongType(), required=False))
# Queries, and what each reads: tables in their current versions, with tags, or in all versions.
QUERIES: dict[str, list[tuple[str, str | None]]] = {
    "select * from s.a": [("a", None)],
    "select * from s.a join s.b": [("a", None), ("b", None)],
    "select * from s.a version as of 'mark'": [("a", "mark")],
    "select * from s.a union all select * from s.a version as of 'mark'": [
        ("a", None),
        ("a", "mark"),
    ],
    "select * from s.v": [("v", None)],
    "select * from s.b, s.v": [("b", None), ("v", None)],
    "select /*+ broadcast(x) */ * from s.b x": [("b", None)],
}
HISTORY = "select * from s.a where true"


class World:
    """Tables that others write to, and the rows that each version has."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.lake = make_catalog(folder)
        self.random = random.Random(seed)
        self.rows: dict[int | None, tuple[int, ...]] = {None: ()}
        self.histories: dict[str, list[Any]] = defaultdict(list)
        self.viewed = "a"
        self.number = 0
        for table in TABLES:
            self.create(table)
        self.define_view("a")

    def create(self, table: str) -> None:
        make_table(self.lake, name=("s", table))
        self.histories[table] = [object()]
        self.write(table)
        self.tag(table)

    def write(self, table: str) -> None:
        """Add a row, replace all rows, or compact."""
        self.number += 1
        operation = self.random.choice([Operation.APPEND, Operation.OVERWRITE, Operation.REPLACE])
        before = self.rows[self.current(table)]
        file = AddedFiles(
            (data_file(f"{load(self.lake, ('s', table)).metadata['location']}/{self.number}"),)
        )
        removes_all = operation != Operation.APPEND
        change = Change(operation, (file,), removes_all=removes_all)
        snapshot = commit(self.lake, change, name=("s", table)).snapshot
        after = {
            Operation.APPEND: (*before, self.number),
            Operation.OVERWRITE: (self.number,),
            Operation.REPLACE: before,
        }
        self.rows[snapshot.snapshot_id] = after[operation]
        if operation != Operation.REPLACE:
            self.histories[table].append(after[operation])

    def roll_back(self, table: str) -> None:
        snapshot_id = self.random.choice(self.metadata(table)["snapshots"])["snapshot-id"]
        if snapshot_id != self.current(table):
            self.set_reference(table, "main", "branch", snapshot_id)
            self.histories[table].append(self.rows[snapshot_id])

    def tag(self, table: str) -> None:
        snapshot_id = self.random.choice(self.metadata(table)["snapshots"])["snapshot-id"]
        self.set_reference(table, "mark", "tag", snapshot_id)

    def change_columns(self, table: str) -> None:
        evolve(self.lake, schema=self.random.choice([SCHEMA, WIDE]), name=("s", table))

    def set_property(self, table: str) -> None:
        table_now = load(self.lake, ("s", table))
        name = self.random.choice(["comment", NAME_MAPPING])
        update = SetPropertiesUpdate(updates={name: str(self.random.random())})
        self.lake.commit(table_now, (), (update,))

    def expire(self, table: str) -> None:
        metadata = self.metadata(table)
        kept = {reference["snapshot-id"] for reference in metadata["refs"].values()}
        others = [s["snapshot-id"] for s in metadata["snapshots"] if s["snapshot-id"] not in kept]
        if others:
            table_now = load(self.lake, ("s", table))
            self.lake.commit(table_now, (), (RemoveSnapshotsUpdate(snapshot_ids=others),))

    def recreate(self, table: str) -> None:
        self.lake.unregister(("s", table))
        self.create(table)

    def change_view(self, _: str) -> None:
        self.define_view(self.random.choice(TABLES))

    def define_view(self, table: str) -> None:
        self.lake.put_view(("s", "v"), view(f"select * from s.{table}"))
        self.viewed = table

    def set_reference(self, table: str, name: str, kind: str, snapshot_id: int | None) -> None:
        values = {"ref-name": name, "type": kind, "snapshot-id": snapshot_id}
        update = SetSnapshotRefUpdate.model_validate(values)
        self.lake.commit(load(self.lake, ("s", table)), (), (update,))

    def metadata(self, table: str) -> Mapping[str, Any]:
        return load(self.lake, ("s", table)).metadata

    def current(self, table: str) -> int | None:
        current: int | None = self.metadata(table).get("current-snapshot-id")
        return None if current == -1 else current

    def act(self, most: int = 1) -> None:
        """What other writers do; often nothing."""
        for _ in range(self.random.choice([0, 0, *range(1, most + 1)])):
            self.random.choice(ACTIONS)(self, self.random.choice(TABLES))

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """What other writers do around a read; often they take it back after it."""
        table = self.random.choice(TABLES)
        metadata, viewed = self.metadata(table), self.viewed
        action = self.random.choice([World.write, World.tag, World.change_view, None, None, None])
        if action is None:
            self.act()
            yield
            self.act()
            return
        action(self, table)
        yield
        if action == World.change_view:
            self.define_view(viewed)
        else:
            for name, reference in metadata["refs"].items():
                self.set_reference(table, name, reference["type"], reference["snapshot-id"])
            self.histories[table].append(self.rows[self.current(table)])

    def truth(self, sql: str) -> str:
        """The rows of a query now, with their columns."""
        if sql == HISTORY:
            return repr(self.histories["a"])
        return repr([self._read(*each) for each in QUERIES[sql]])

    def _read(self, table: str, tag: str | None) -> tuple[Any, ...]:
        metadata = self.metadata(self.viewed if table == "v" else table)
        mapping = name_mapping(metadata)
        if tag is not None:
            return self.rows[metadata["refs"][tag]["snapshot-id"]], (), mapping
        columns = next(
            s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]
        )
        names = [column["name"] for column in columns["fields"]]
        current = metadata.get("current-snapshot-id")
        return self.rows[None if current == -1 else current], names, mapping


ACTIONS = (
    *(World.write, World.write, World.roll_back, World.tag, World.change_columns),
    *(World.set_property, World.expire, World.recreate, World.change_view),
)


def view(sql: str) -> dict[str, Any]:
    representation = {"type": "sql", "sql": sql, "dialect": "spark"}
    version = {"version-id": 1, "schema-id": 0, "representations": [representation]}
    fields = [{"id": 1, "name": "id", "type": "long", "required": False}]
    schemas = [{"type": "struct", "schema-id": 0, "fields": fields}]
    return {"current-version-id": 1, "versions": [version], "schemas": schemas}


@contextmanager
def world(folder: Path, seed: int) -> Iterator[World]:
    made = World(folder, seed)
    yield made
    made.lake.close()


def check_model(world: World, sql: str, steps: int) -> int:
    """Run a model again and again; return how often it was skipped."""
    catalogs, record, rows, skipped = one_catalog(world.lake), None, "", 0
    for _ in range(steps):
        world.act(3)
        before = capture_inputs(catalogs, sql, ("s", "model"), with_history=sql == HISTORY)
        if record is not None and before.change_since(record) is None:
            assert rows == world.truth(sql), f"{sql} was skipped"
            # As the record follows compactions.
            record, skipped = before.as_json(), skipped + 1
            continue
        with world.disturbed():
            rows = world.truth(sql)
        after = capture_inputs(catalogs, sql, ("s", "model"), with_history=sql == HISTORY)
        record = None if after.changed_since(before) else before.as_json()
    return skipped


def check_cache(world: World, cache: ResultCache, steps: int) -> int:
    """Ask queries again and again; return how often a result was cached."""
    hits = 0
    for _ in range(steps):
        world.act()
        sql = world.random.choice(list(QUERIES))
        query = cache.find(sql, {})
        assert query is not None
        if (result := cache.get(query)) is not None:
            assert result.column("rows").to_pylist() == [world.truth(sql)]
            hits += 1
            continue
        with world.disturbed():
            rows = world.truth(sql)
        cache.put(query, pa.table({"rows": [rows]}))
    return hits


@pytest.mark.parametrize("seed", range(3))
def test_models(tmp_path: Path, seed: int) -> None:
    for number, sql in enumerate([*QUERIES, HISTORY]):
        with world(tmp_path / str(number), seed) as each:
            assert check_model(each, sql, 20) > 0


@pytest.mark.parametrize("seed", range(3))
def test_cached_results(tmp_path: Path, seed: int) -> None:
    with world(tmp_path, seed) as each:
        store = ResultStore(tmp_path / "results.db", 1 << 20)
        cache = ResultCache(store, one_catalog(each.lake), {"warehouse": "here"})
        assert check_cache(each, cache, 100) > 0
        cache.close()


def test_both_versions_of_a_staged_table(tmp_path: Path) -> None:
    """Once, a test that reads both was taken for one that reads the published version only."""
    lake = make_catalog(tmp_path)
    for name in ("t", "t__dbt_build_pr"):
        make_table(lake, name=("s", name))
    sql = "select * from s.t except select * from s.t__dbt_build_pr"
    with pytest.raises(UnknownInputs, match="the published and the staged version"):
        capture_inputs(one_catalog(lake), sql, None, "pr")
