"""What a node has queried stays valid while only it, and compactions, write."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalogs import one_catalog
from dbt.adapters.iceberg_stream.sessions.own_reads import OwnReads
from dbt.adapters.iceberg_stream.sql.reads import Reads
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet, capture_read_set

NAME = ("s", "t")


class Lake:
    """A catalog with one table, whose snapshots may expire."""

    name = "lake"

    def __init__(self) -> None:
        self.table: dict[str, Any] = {
            "table-uuid": "u",
            "current-schema-id": 0,
            "schemas": [{"schema-id": 0, "fields": []}],
            "current-snapshot-id": None,
            "snapshots": [],
            "last-updated-ms": 0,
        }

    def metadata(self, name: tuple[str, str], history: bool = True) -> Any:
        return self.table if name == NAME else None

    def commit(self, operation: str = "append") -> int:
        snapshots, parent = self.table["snapshots"], self.table["current-snapshot-id"]
        number = 1 + max((s["snapshot-id"] for s in snapshots), default=0)
        snapshot = {"snapshot-id": number, "timestamp-ms": number}
        snapshot |= {"summary": {"operation": operation}}
        snapshot |= {"parent-snapshot-id": parent} if parent else {}
        now = {"current-snapshot-id": number, "last-updated-ms": number}
        self.table = {**self.table, **now, "snapshots": [*snapshots, snapshot]}
        return number

    def alter(self) -> None:
        schemas = self.table["schemas"]
        number = len(schemas)
        new = {"schema-id": number, "fields": [{"id": number, "name": f"c{number}"}]}
        self.table = {**self.table, "current-schema-id": number, "schemas": [*schemas, new]}

    def expire(self) -> None:
        self.table = {**self.table, "snapshots": self.table["snapshots"][-1:]}

    def read(self) -> ReadSet:
        read = Reads(frozenset([NAME]))
        read_set = capture_read_set(one_catalog(self), read, {})  # type: ignore[arg-type]
        assert read_set is not None
        return read_set


class Node:
    """A node of which a test knows whether another writer has written since it read."""

    def __init__(self) -> None:
        self.lake = Lake()
        self.reads = OwnReads(one_catalog(self.lake))  # type: ignore[arg-type]
        self.lake.commit()
        self.reads.note(self.lake.read())
        self.is_changed = False

    def write(self) -> None:
        self.on_write(snapshot_id=self.lake.commit("overwrite"))

    def write_nothing(self) -> None:
        self.on_write(snapshot_id=None)

    def alter(self) -> None:
        self.lake.alter()
        self.on_write(alters=True)

    def compact(self) -> None:
        """By a call of the node, or by somebody else."""
        self.lake.commit("replace")

    def expire(self) -> None:
        self.reads.follow()
        self.lake.expire()

    def another_writes(self) -> None:
        self.lake.commit()
        self.is_changed = True

    def on_write(self, alters: bool = False, snapshot_id: int | None = None) -> None:
        self.reads.on_write(NAME, alters, replaces=False, snapshot_id=snapshot_id)

    def sees_a_change(self) -> bool:
        return self.reads.read_set.has_changed(NAME, self.lake.table)


@pytest.mark.parametrize("seed", range(200))
def test_random_histories(seed: int) -> None:
    rng, node = Random(seed), Node()
    steps = [node.write, node.write_nothing, node.alter, node.compact, node.expire]
    history = []
    for _ in range(rng.randint(1, 12)):
        step = rng.choice([*steps, node.another_writes] if rng.random() < 0.2 else steps)
        history.append(step.__name__)
        step()
        assert node.sees_a_change() == node.is_changed, history


def test_a_table_that_the_node_replaces_was_not_read() -> None:
    node = Node()
    node.reads.on_write(NAME, alters=False, replaces=True, snapshot_id=None)
    assert node.reads.read_set.versions == {}


def test_a_hook_has_its_own_reads() -> None:
    node = Node()
    node.reads.begin_hook()
    assert node.reads.read_set.versions == {}
    node.write()
    node.reads.note(node.lake.read())
    node.another_writes()
    assert node.sees_a_change()
    node.reads.end_hook()
    assert node.sees_a_change()
    node.reads.forget()
    assert node.reads.read_set.versions == {}


def test_writes_of_a_hook_are_those_of_its_node() -> None:
    node = Node()
    node.reads.begin_hook()
    node.write()
    node.reads.end_hook()
    assert not node.sees_a_change()


def test_the_first_query_decides() -> None:
    node = Node()
    node.another_writes()
    node.reads.note(node.lake.read())
    assert node.sees_a_change()
