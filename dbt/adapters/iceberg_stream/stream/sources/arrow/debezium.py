"""Decode Debezium's JSON by PyArrow, if the query only picks columns of the row.

A batch with a message that is bad, or more than the change of one row, is read by Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.json import decode_objects
from dbt.adapters.iceberg_stream.stream.sources.formats.row_images import PLACEHOLDER
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import json_values
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR, ROW_DELETED

# What `Envelope` has Spark decode besides the row: a value of another type makes a message bad.
SOURCE = pa.struct([("table", pa.string()), ("lsn", pa.int64()), ("pos", pa.int64())])
# Changes of at most one row; truncates and unknown operations are Spark's.
OPERATIONS = pa.array(["c", "r", "u", "d", "m"])


def decode_debezium(
    messages: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    columns: Mapping[str, str],
    key: Sequence[str] = (),
    zone: str = "UTC",
) -> Iterator[pa.RecordBatch]:
    """Decode changes to columns of the row, with MAJOR, MINOR and ROW_DELETED.

    Args:
        messages: batches with the columns `value` (binary) and `offset` (int64).
        schema: of the row.
        columns: the row's column for each column to return.
        key: the row's columns that identify it.
        zone: the time zone of times without one.

    Raises:
        ArrowFallback: a message may be bad, has its schema with it, is no change of one row, or
            Spark may decode it differently.
    """
    row = pa.struct(list(schema))
    body = [("before", row), ("after", row), ("op", pa.string()), ("ts_ms", pa.int64())]
    # Of a message with its schema, Spark reads the payload.
    body += [("source", SOURCE), ("payload", pa.struct([("op", pa.string())]))]
    for batch in messages:
        if not batch.num_rows:
            continue
        values = json_values(batch["value"])
        changes = decode_objects(values, pa.schema(body), zone).combine_chunks()
        if changes["payload"].null_count < len(changes):
            raise ArrowFallback
        operations = changes["op"].combine_chunks()
        deleted = deletes(operations)
        images = changes["before"].combine_chunks(), changes["after"].combine_chunks()
        require_rows(operations, *images, key)
        before, after = (dict(zip(schema.names, image.flatten(), strict=True)) for image in images)
        rows = {
            name: of_image(deleted, before[column], after[column])
            for name, column in columns.items()
        }
        rows[MAJOR] = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
        rows[MINOR] = batch["offset"]
        rows[ROW_DELETED] = deleted
        yield pa.record_batch(rows).filter(is_of_row(operations))


def require_rows(
    operations: pa.Array, before: pa.StructArray, after: pa.StructArray, key: Sequence[str]
) -> None:
    """Check that each change of a row has the row, its values, and the key that it had before.

    Args:
        operations: `op` of the changes.
        before: the rows before the changes.
        after: the rows after them.
        key: the members that identify a row.

    Raises:
        ArrowFallback: one does not, as `row_images` says for Spark.
    """
    of_row, deleted = is_of_row(operations), deletes(operations)
    images = of_image(deleted, before.is_valid(), after.is_valid())
    is_bad = [pc.invert(images)]
    for name in key:
        old, new = pc.struct_field(before, name), pc.struct_field(after, name)
        if pa.types.is_nested(old.type):
            raise ArrowFallback
        is_missing = of_image(deleted, old, new).is_null()
        if pa.types.is_floating(old.type):
            # As text, as Spark compares them: 0.0 and -0.0 are two keys.
            old, new = old.cast(pa.string()), new.cast(pa.string())
        is_bad += [is_missing, pc.not_equal(old, new)]
    is_bad += [is_missing for values in after.flatten() for is_missing in _placeholders(values)]
    if any(pc.any(pc.and_(of_row, each)).as_py() for each in is_bad):
        raise ArrowFallback


def _placeholders(values: pa.Array) -> Iterator[pa.Array]:
    """Yield which values of a column were not logged, if there are any."""
    items = values.flatten() if pa.types.is_list(values.type) else values
    if pa.types.is_string(items.type) or pa.types.is_binary(items.type):
        is_missing = pc.equal(items, pa.scalar(PLACEHOLDER, items.type))
        if pc.any(is_missing).as_py():
            yield is_missing if items is values else pa.repeat(True, len(values))


def deletes(operations: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return which changes delete a row.

    Args:
        operations: `op` of the changes.

    Raises:
        ArrowFallback: some have another effect than that on one row, such as a truncate.
    """
    if not pc.all(pc.is_in(operations, OPERATIONS)).as_py():
        raise ArrowFallback
    return pc.equal(operations, "d")


def of_image(deleted: pa.Array, before: pa.Array, after: pa.Array) -> pa.Array:
    """Return values of a column of the rows that changes are of.

    Args:
        deleted: which changes delete the row.
        before: values before the change.
        after: values after it.
    """
    return pc.if_else(deleted, before, after) if pc.any(deleted).as_py() else after


def is_of_row(operations: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return which changes are of a row: `m` is a message that the source's log contains.

    Args:
        operations: `op` of the changes.
    """
    return pc.not_equal(operations, "m")
