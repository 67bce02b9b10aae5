"""`iceberg-stream check` finds nothing in random valid histories of tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import SetSnapshotRefUpdate, UpgradeFormatVersionUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from tests.integration.filled_tables import BY_PART
from tests.integration.streams import NAME, Change, commit, make_table, open_sink

STEPS = 12
# Columns that partition fields may have.
KEPT = ("id", "text", "kind")
# Leftovers that are no damage: deletes whose files were rewritten, older metadata that was removed.
HARMLESS = {"dangling-delete", "metadata-log"}
NESTED = StructType(
    NestedField(100, "a", IntegerType()),
    NestedField(101, "b", ListType(102, StringType(), element_required=False)),
)


def wrong(lake: IcebergCatalog) -> list[str]:
    loaded = lake.load(NAME)
    assert loaded is not None
    found = check_table(loaded, data=True).findings
    return [f"{f.code}: {f.where}: {f.problem}" for f in found if f.code not in HARMLESS]


def rows_of(table: Table, rng: random.Random) -> pa.Table:
    """Random rows of the current schema."""
    count = rng.randint(1, 5)
    values: dict[str, Callable[[], Any]] = {
        "int": lambda: rng.randint(-5, 5),
        "long": lambda: rng.randint(-(2**40), 2**40),
        "string": lambda: rng.choice(["a", "bä", ""]),
    }

    def value(kind: Any) -> Any:
        if rng.random() < 0.2:
            return None
        if isinstance(kind, StructType):
            return {"a": rng.randint(0, 9), "b": rng.choice([[], ["x", None], None])}
        return values[str(kind)]()

    columns = {
        field.name: [
            value(field.field_type) if not field.required else rng.randint(0, 9)
            for _ in range(count)
        ]
        for field in table.schema().fields
    }
    return pa.table(columns, schema=table.schema().as_arrow())


def append(table: Table, rng: random.Random) -> None:
    refs = [name for name, ref in table.refs().items() if ref.snapshot_ref_type == "branch"]
    table.append(rows_of(table, rng), branch=rng.choice(refs or ["main"]))


def delete(table: Table, rng: random.Random) -> None:
    table.delete(f"id = {rng.randint(-5, 5)}")


def overwrite(table: Table, rng: random.Random) -> None:
    table.overwrite(rows_of(table, rng), f"id > {rng.randint(-5, 5)}")


def change_columns(table: Table, rng: random.Random) -> None:
    others = [f.name for f in table.schema().fields if f.name not in KEPT]
    with table.update_schema() as update:
        if len(others) > 2 and rng.random() < 0.5:
            update.delete_column(rng.choice(others))
        elif others and rng.random() < 0.4:
            old = rng.choice(others)
            # A name that another column had.
            new = rng.choice([f"c{n}" for n in range(4)])
            if new not in others:
                update.rename_column(old, new)
        elif isinstance(table.schema().find_type("id"), IntegerType) and rng.random() < 0.5:
            update.update_column("id", LongType())
        else:
            free = [f"c{n}" for n in range(4) if f"c{n}" not in others]
            if free:
                update.add_column(free[0], rng.choice([StringType(), LongType(), NESTED]))


def change_partitions(table: Table, rng: random.Random) -> None:
    names = [field.name for field in table.spec().fields if str(field.transform) != "void"]
    with table.update_spec() as update:
        if names and rng.random() < 0.5:
            update.remove_field(rng.choice(names))
        else:
            column, transform = rng.choice(LAYOUT)
            source = table.schema().find_field(column).field_id
            # PyIceberg has one field a column, a void one included.
            if not any(field.source_id == source for field in table.spec().fields):
                update.add_field(column, transform, f"{column}_part")


def make_ref(table: Table, rng: random.Random) -> None:
    if table.metadata.snapshots:
        snapshot_id = rng.choice(table.metadata.snapshots).snapshot_id
        name = f"r{rng.randint(0, 3)}"
        if name not in table.refs():
            manage = table.manage_snapshots()
            make = rng.choice([manage.create_tag, manage.create_branch])
            make(snapshot_id, name).commit()


def roll_back(table: Table, rng: random.Random) -> None:
    current = table.current_snapshot()
    parent = None if current is None else current.parent_snapshot_id
    if parent is not None and table.snapshot_by_id(parent):
        table.manage_snapshots().rollback_to_snapshot(parent).commit()


def expire(table: Table, rng: random.Random) -> None:
    used = {ref.snapshot_id for ref in table.refs().values()}
    old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in used]
    if old:
        table.maintenance.expire_snapshots().by_ids(
            rng.sample(old, rng.randint(1, len(old)))
        ).commit()


LAYOUT = (
    ("id", BucketTransform(3)),
    ("text", TruncateTransform(1)),
    ("kind", IdentityTransform()),
)
WRITES = (append, append, delete, overwrite)
CHANGES = (change_columns, change_columns, change_partitions, make_ref, roll_back, expire)


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_histories_of_pyiceberg(lake: IcebergCatalog, seed: int, version: int) -> None:
    rng = random.Random(seed * 10 + version)
    schema = Schema(
        NestedField(1, "id", IntegerType(), required=True),
        NestedField(2, "text", StringType()),
        NestedField(3, "kind", IntegerType()),
        NestedField(4, "c0", StringType()),
    )
    lake.pyiceberg.create_table(NAME, schema, properties={"format-version": str(version)})
    done: list[str] = []
    for _ in range(STEPS):
        step = rng.choice(WRITES if rng.random() < 0.5 else CHANGES)
        done.append(step.__name__)
        step(lake.pyiceberg.load_table(NAME), rng)
    assert wrong(lake) == [], done


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_histories_of_streams(
    lake: IcebergCatalog, seed: int, version: int, partitioned: bool
) -> None:
    """Equality deletes, position deletes and vectors, upgraded on the way, with tags and branches."""
    rng = random.Random(seed)
    settings: dict[str, Any] = {"partitioned": True} if partitioned else {}
    make_table(lake, version, BY_PART) if partitioned else make_table(lake, version)
    for number in range(1, 7):
        changes = [
            Change(key, None if rng.random() < 0.2 else f"v{number}", "ab"[key % 2])
            for key in (rng.randint(0, 8) for _ in range(rng.randint(1, 8)))
        ]
        many = {"rows": 3, "max_keys": 100} if rng.random() < 0.5 else {}
        commit(open_sink(lake), changes, number * 10, **many, **settings)
        _foreign_change(lake, number, rng)
    assert wrong(lake) == []


def _foreign_change(lake: IcebergCatalog, number: int, rng: random.Random) -> None:
    base = lake.load(NAME)
    assert base is not None
    snapshot_id = base.metadata["current-snapshot-id"]
    kind = rng.choice(["tag", "branch", "upgrade", "nothing"])
    if kind == "upgrade" and base.metadata["format-version"] == 2:
        lake.commit(base, (), (UpgradeFormatVersionUpdate(format_version=3),))
    elif kind in ("tag", "branch"):
        ref = {"ref-name": f"r{number}", "type": kind, "snapshot-id": snapshot_id}
        lake.commit(
            base, (), (SetSnapshotRefUpdate.model_validate({"action": "set-snapshot-ref", **ref}),)
        )
