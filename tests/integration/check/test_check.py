"""`iceberg-stream check`: silent about right tables, and loud about each kind of damage."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.manifest import ManifestEntry

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.check.finding import KINDS
from tests.integration.check.damage import (
    DATA,
    DELETES,
    FIELD,
    LISTED,
    data_files,
    edit_entries,
    edit_files,
    edit_list,
    edit_metadata,
    findings,
    path_of,
    rewrite_parquet,
    snapshot,
)
from tests.integration.filled_tables import fill
from tests.integration.streams import NAME, Change, commit, open_sink
from tests.servers.iceberg_parser import refusal

DOCS = Path(__file__).parents[3] / "docs" / "check.md"


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_nothing_is_wrong_with_our_tables(
    lake: IcebergCatalog, version: int, partitioned: bool
) -> None:
    fill(lake, version, partitioned)
    assert [f for f in findings(lake) if f.severity != "note"] == []


def set_current(key: str) -> Callable[[IcebergCatalog], None]:
    return lambda lake: edit_metadata(lake, lambda m: m.update({key: 77}))


def number_too_high(lake: IcebergCatalog) -> None:
    edit_metadata(lake, lambda m: m["snapshots"][-1].update({"sequence-number": 99}))


def number_of_a_parent(lake: IcebergCatalog) -> None:
    first = snapshot(lake)["parent-snapshot-id"]

    def change(metadata: dict[str, Any]) -> None:
        parent = next(s for s in metadata["snapshots"] if s["snapshot-id"] == first)
        metadata["snapshots"][-1]["sequence-number"] = parent["sequence-number"]

    edit_metadata(lake, change)


def ref_without_snapshot(lake: IcebergCatalog) -> None:
    tag = {"snapshot-id": 1, "type": "tag"}
    edit_metadata(lake, lambda m: m["refs"].update({"audit": tag}))


def snapshot_without_schema(lake: IcebergCatalog) -> None:
    edit_metadata(lake, lambda m: m["snapshots"][0].update({"schema-id": 9}))


def column_id_in_use(lake: IcebergCatalog) -> None:
    edit_metadata(lake, lambda m: m.update({"last-column-id": 2}))


def identifier_is_optional(lake: IcebergCatalog) -> None:
    edit_metadata(lake, lambda m: m["schemas"][0].update({"identifier-field-ids": [1]}))


def log_out_of_order(lake: IcebergCatalog) -> None:
    edit_metadata(lake, lambda m: m["snapshot-log"][0].update({"timestamp-ms": 9 * 10**15}))


def row_ids_in_use(lake: IcebergCatalog) -> None:
    edit_metadata(lake, lambda m: m.update({"next-row-id": 1}))


def progress_ahead(lake: IcebergCatalog) -> None:
    def change(metadata: dict[str, Any]) -> None:
        name = next(n for n in metadata["properties"] if n.startswith("iceberg-stream.sink."))
        said = json.loads(metadata["properties"][name])
        said["write-id"] = "another"
        metadata["properties"][name] = json.dumps(said)

    edit_metadata(lake, change)


def progress_torn(lake: IcebergCatalog) -> None:
    def change(metadata: dict[str, Any]) -> None:
        name = next(n for n in metadata["properties"] if n.startswith("iceberg-stream.sink."))
        metadata["properties"][name] = "{"

    edit_metadata(lake, change)


def data_file_gone(lake: IcebergCatalog) -> None:
    path_of(data_files(lake)[0].data_file.file_path).unlink()


def manifest_gone(lake: IcebergCatalog) -> None:
    loaded = lake.load(NAME)
    assert loaded is not None
    next(path_of(loaded.metadata["location"]).rglob("*-m0.avro")).unlink()


def manifest_list_torn(lake: IcebergCatalog) -> None:
    file = path_of(snapshot(lake)["manifest-list"])
    file.write_bytes(file.read_bytes()[:50])


def file_torn(lake: IcebergCatalog) -> None:
    file = path_of(data_files(lake)[0].data_file.file_path)
    file.write_bytes(file.read_bytes()[:-8])


def list_counts(lake: IcebergCatalog) -> None:
    edit_list(lake, lambda ms: ms[0].__setitem__(LISTED["added_rows_count"], 77))


def least_number(lake: IcebergCatalog) -> None:
    edit_list(lake, lambda ms: setattr(ms[0], "min_sequence_number", ms[0].sequence_number + 1))


def spec_gone(lake: IcebergCatalog) -> None:
    edit_list(lake, lambda ms: ms[0].__setitem__(LISTED["partition_spec_id"], 9))


def later_than_its_commit(lake: IcebergCatalog) -> None:
    edit_files(lake, DATA, lambda e: setattr(e, "sequence_number", 50))


def listed_twice(lake: IcebergCatalog) -> None:
    edit_entries(lake, DATA, lambda entries: entries.append(entries[0]))


def in_data_file(name: str, value: Any, content: Any = DATA) -> Callable[[IcebergCatalog], None]:
    def change(entry: ManifestEntry) -> None:
        old = entry.data_file[FIELD[name]]
        entry.data_file[FIELD[name]] = value(old) if callable(value) else value

    return lambda lake: edit_files(lake, content, change)


def summary_of_partition(lake: IcebergCatalog) -> None:
    def change(manifests: list[Any]) -> None:
        manifests[0].partitions[0] = manifests[0].partitions[0].__class__(False, False, b"a", b"a")

    edit_list(lake, change)


def rows_of_another_partition(lake: IcebergCatalog) -> None:
    entry = data_files(lake)[0]
    location = entry.data_file.file_path
    size = rewrite_parquet(
        location,
        lambda rows: rows.set_column(
            1, rows.schema.field(1), pa.array(["z"] * rows.num_rows, pa.string())
        ),
    )
    in_data_file("file_size_in_bytes", lambda _: size)(lake) if len(data_files(lake)) == 1 else None


def summary_totals(lake: IcebergCatalog) -> None:
    edit_metadata(lake, lambda m: m["snapshots"][-1]["summary"].update({"total-records": "1"}))


def without_field_ids(lake: IcebergCatalog) -> None:
    def plain(rows: pa.Table) -> pa.Table:
        return rows.cast(pa.schema([pa.field(f.name, f.type) for f in rows.schema]))

    for entry in data_files(lake):
        rewrite_parquet(entry.data_file.file_path, plain)


def other_type(lake: IcebergCatalog) -> None:
    def changed(rows: pa.Table) -> pa.Table:
        ids = rows.schema.field("id")
        return rows.set_column(0, ids.with_type(pa.string()), pc.cast(rows["id"], pa.string()))

    for entry in data_files(lake):
        rewrite_parquet(entry.data_file.file_path, changed)


def column_is_required(lake: IcebergCatalog) -> None:
    sink = open_sink(lake)
    commit(sink, [Change(None, "n")], 20)
    edit_metadata(lake, lambda m: m["schemas"][0]["fields"][0].update({"required": True}))


def bitmap_torn(lake: IcebergCatalog) -> None:
    vector = next(
        e.data_file for e in data_files(lake, DELETES) if e.data_file[FIELD["content_offset"]]
    )
    file = path_of(vector.file_path)
    raw = bytearray(file.read_bytes())
    raw[vector[FIELD["content_offset"]] + 20] ^= 255
    file.write_bytes(bytes(raw))


def two_vectors(lake: IcebergCatalog) -> None:
    def change(entries: list[ManifestEntry]) -> None:
        entries += [e for e in entries if e.data_file[FIELD["content_offset"]]]

    edit_entries(lake, DELETES, change)


def of_position_deletes(
    change: Callable[[ManifestEntry], None],
) -> Callable[[IcebergCatalog], None]:
    def edit(entries: list[ManifestEntry]) -> None:
        for entry in entries:
            if entry.data_file.content == 1:
                change(entry)

    return lambda lake: edit_entries(lake, DELETES, edit)


def positions_past_the_end(lake: IcebergCatalog) -> None:
    for entry in data_files(lake, DELETES):
        if entry.data_file.content == 1:
            rewrite_parquet(
                entry.data_file.file_path,
                lambda rows: rows.set_column(
                    1, rows.schema.field(1), pa.array([1000 + n for n in range(rows.num_rows)])
                ),
            )


def fewer_rows_than_positions(lake: IcebergCatalog) -> None:
    """The vector's data file is another, shorter one."""
    in_data_file("record_count", 0)(lake)


def positions_unsorted(lake: IcebergCatalog) -> None:
    for entry in data_files(lake, DELETES):
        if entry.data_file.content == 1:
            rewrite_parquet(entry.data_file.file_path, lambda rows: rows.take([1, 0]))


def unknown_key(lake: IcebergCatalog) -> None:
    def edit(entries: list[ManifestEntry]) -> None:
        for entry in entries:
            if entry.data_file.content == 2:
                entry.data_file[FIELD["equality_ids"]] = [44]

    edit_entries(lake, DELETES, edit)


def int8(value: int) -> bytes:
    return struct.pack("<q", value)


DAMAGE: list[tuple[str, int, Callable[[IcebergCatalog], None]]] = [
    ("current-schema-missing", 2, set_current("current-schema-id")),
    ("current-snapshot-missing", 2, set_current("current-snapshot-id")),
    ("default-missing", 2, set_current("default-spec-id")),
    ("default-missing", 2, set_current("default-sort-order-id")),
    ("metadata-refused", 2, identifier_is_optional),
    ("metadata-refused", 2, log_out_of_order),
    ("snapshot-sequence-number", 2, number_too_high),
    ("snapshot-order", 2, number_of_a_parent),
    ("ref-snapshot-missing", 2, ref_without_snapshot),
    ("snapshot-schema-missing", 2, snapshot_without_schema),
    ("field-ids", 2, column_id_in_use),
    ("row-ids", 3, row_ids_in_use),
    ("row-ids", 3, in_data_file("first_row_id", 0)),
    ("stream-progress", 2, progress_ahead),
    ("stream-progress", 2, progress_torn),
    ("missing-file", 2, data_file_gone),
    ("missing-file", 2, manifest_gone),
    ("unreadable-file", 2, manifest_list_torn),
    ("unreadable-file", 2, file_torn),
    ("unreadable-file", 3, bitmap_torn),
    ("file-size", 2, in_data_file("file_size_in_bytes", lambda size: size + 1)),
    ("file-size", 2, in_data_file("file_size_in_bytes", 0)),
    ("manifest-counts", 2, list_counts),
    ("manifest-spec", 2, spec_gone),
    ("manifest-content", 2, in_data_file("content", 1)),
    ("sequence-number", 2, least_number),
    ("sequence-number", 2, later_than_its_commit),
    ("file-twice", 2, listed_twice),
    ("summary-totals", 2, summary_totals),
    ("vector-twice", 3, two_vectors),
    ("vector-count", 3, of_position_deletes(lambda e: e.data_file.__setitem__(FIELD["record_count"], 9))),
    ("position-past-end", 2, positions_past_the_end),
    ("position-past-end", 3, fewer_rows_than_positions),
    ("equality-column", 2, unknown_key),
    ("row-count", 2, in_data_file("record_count", lambda count: count + 1)),
    ("bounds", 2, in_data_file("upper_bounds", lambda bounds: {**bounds, 1: int8(-1)})),
    ("bounds", 2, in_data_file("lower_bounds", lambda bounds: {**bounds, 1: int8(99)})),
    ("bounds", 2, in_data_file("upper_bounds", lambda bounds: {**bounds, 3: b"a"})),
    ("bounds", 2, in_data_file("lower_bounds", lambda bounds: {**bounds, 1: b""})),
    ("bounds", 2, in_data_file("upper_bounds", lambda bounds: {**bounds, 1: bytes(12)})),
    ("bounds", 2, in_data_file("upper_bounds", lambda bounds: {**bounds, 1: int8(-1)}, DELETES)),
    ("delete-metrics", 2, in_data_file("lower_bounds", lambda bounds: {**bounds, 3: b"a"}, DELETES)),
    ("value-counts", 2, in_data_file("null_value_counts", lambda counts: {**counts, 1: 5})),
    ("null-in-required", 2, column_is_required),
    ("column-type", 2, other_type),
    ("field-ids-missing", 2, without_field_ids),
    ("split-offsets", 2, in_data_file("split_offsets", [5])),
    ("sort-order", 2, in_data_file("sort_order_id", 6)),
]  # fmt: skip
PARTITIONED: list[tuple[str, int, Callable[[IcebergCatalog], None]]] = [
    ("partition-summary", 2, summary_of_partition),
    ("partition-value", 2, rows_of_another_partition),
]


def names(damage: list[tuple[str, int, Callable[[IcebergCatalog], None]]]) -> list[str]:
    return [f"{code}-{number}" for number, (code, _, _) in enumerate(damage)]


@pytest.mark.parametrize(("code", "version", "damage"), DAMAGE, ids=names(DAMAGE))
def test_damage_is_named(
    lake: IcebergCatalog,
    parser: None,
    code: str,
    version: int,
    damage: Callable[[IcebergCatalog], None],
) -> None:
    fill(lake, version)
    damage(lake)
    reported = findings(lake)
    assert code in {finding.code for finding in reported}
    loaded = lake.load(NAME)
    assert loaded is not None
    # What Iceberg cannot read is an error.
    if refusal(loaded.location):
        assert any(finding.severity == "error" for finding in reported)


@pytest.mark.parametrize(("code", "version", "damage"), PARTITIONED, ids=names(PARTITIONED))
def test_damage_of_partitions_is_named(
    lake: IcebergCatalog, code: str, version: int, damage: Callable[[IcebergCatalog], None]
) -> None:
    fill(lake, version, partitioned=True)
    damage(lake)
    assert code in {finding.code for finding in findings(lake)}


def test_every_kind_is_in_the_docs() -> None:
    text = DOCS.read_text()
    assert [code for code in KINDS if f"`{code}`" not in text] == []
