"""Changes as Arrow tables: their added columns, and the last change of each key.

Worker code: it imports the standard library, PyArrow and other worker code only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.engines.arrow_offsets import with_offsets
from dbt.adapters.iceberg_stream.tables.files.casting import stored_values
from dbt.adapters.iceberg_stream.tables.merge.rows import Source, equal_bits

# Columns that are added to a change's own: those that order the changes of a key (with a number
# appended), whether the change deletes the row, and the values of the partition fields.
ORDER = "__stream_order_"
DELETED = "__stream_deleted"
PARTITION = "__stream_partition"
POSITION = "__position"

Partition = tuple[Any, ...]


def last_changes(changes: pa.Table, keys: Sequence[str], ordered: bool = False) -> pa.Table:
    """Return the last change of each key, in the order of the changes.

    Args:
        changes: the changes, with their order columns.
        keys: columns that identify a row.
        ordered: whether the changes are in their order already.
    """
    if not ordered:
        changes = changes.sort_by([(name, "ascending") for name in order_columns(changes)])
    positions = row_positions(changes.num_rows)
    # In names of its own: PyArrow takes a column `.k` as the path to a field.
    names = [f"key{number}" for number in range(len(keys))]
    numbered = changes.select(list(keys)).rename_columns(names).append_column(POSITION, positions)
    last = numbered.group_by(names, use_threads=False).aggregate([(POSITION, "max")])
    if last.num_rows == changes.num_rows:
        return changes
    return changes.take(last[f"{POSITION}_max"].combine_chunks().sort())


def overtaken_deletes(
    changes: pa.Table, last: pa.Table, keys: Sequence[str], sequences: int
) -> pa.Table:
    """Return the newest delete of each key whose last change is an upsert.

    Older changes may come later, and then need the time of the delete. A delete that has come after
    a newer change of its key is none: it was late itself.

    Args:
        changes: the changes, with their order columns.
        last: the last change of each key.
        keys: columns that identify a row.
        sequences: how many order columns are of `sequence_by`; the others tell the arrival.
    """
    deletes = changes.filter(pc.fill_null(changes[DELETED], False))
    upserts = last.filter(pc.invert(pc.fill_null(last[DELETED], False))).select(list(keys))
    overtaken = upserts.take(Source(deletes, keys).match(upserts).in_file)
    if not overtaken.num_rows:
        return deletes.slice(0, 0)
    matches = Source(overtaken, keys).match(changes.select(list(keys)))
    of_keys = changes.take(matches.in_file)
    names = order_columns(of_keys)
    arrival = _ranks(of_keys, [*names[sequences:], *names[:sequences]])
    # A change is late if the highest rank of its key is another one's when it arrives.
    key = pc.multiply(matches.in_source.cast(pa.int64()), of_keys.num_rows)
    rank = pc.add(key, _ranks(of_keys, names))
    by_arrival = pc.sort_indices(pc.add(key, arrival))
    rank = rank.take(by_arrival)
    in_time = pc.equal(rank, pc.cumulative_max(rank))
    of_keys = of_keys.take(by_arrival).filter(in_time)
    return last_changes(of_keys.filter(pc.fill_null(of_keys[DELETED], False)), keys)


def _ranks(changes: pa.Table, names: Sequence[str]) -> pa.Int64Array:
    """Return the place of each change in the order of some columns."""
    order = pc.sort_indices(changes, [(name, "ascending") for name in names])
    return pc.sort_indices(order).cast(pa.int64())


def with_one_zero_and_nan(changes: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return changes with one zero and one NaN in their keys, as Spark compares them.

    Readers compare the bits: for equality deletes and partitions, 0.0 is not -0.0.

    Args:
        changes: the changes.
        keys: columns that identify a row.
    """
    for name in keys:
        if pa.types.is_floating(changes.schema.field(name).type):
            at = changes.schema.get_field_index(name)
            values = equal_bits(changes[name])
            changes = changes.set_column(at, changes.schema.field(at), values)
    if keys and PARTITION in changes.column_names:
        at = changes.schema.get_field_index(PARTITION)
        struct = changes[PARTITION].combine_chunks()
        if any(pa.types.is_floating(field.type) for field in struct.type):
            parts = [equal_bits(part) for part in struct.flatten()]
            partitions = pa.StructArray.from_arrays(parts, fields=list(struct.type))
            changes = changes.set_column(at, PARTITION, partitions)
    return changes


def chunks(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Combine batches into tables of at least a number of bytes, except for the last one.

    Args:
        batches: the batches; empty ones are skipped.
        size: bytes in memory.
    """
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    for batch in map(with_offsets, batches):
        if not batch.num_rows:
            continue
        pending.append(batch)
        pending_bytes += batch.nbytes
        if pending_bytes >= size:
            yield pa.Table.from_batches(pending).combine_chunks()
            pending, pending_bytes = [], 0
    if pending:
        yield pa.Table.from_batches(pending).combine_chunks()


def split(rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
    """Divide rows by their partition.

    Args:
        rows: rows, with the column PARTITION if the table is partitioned.

    Yields:
        The stored values of a partition, empty for an unpartitioned table, and its rows.
    """
    if not rows.num_rows:
        return
    if PARTITION not in rows.column_names:
        yield (), rows
        return
    struct = rows[PARTITION].combine_chunks()
    names = [f"f{number}" for number in range(struct.type.num_fields)]
    values = pa.table([stored_values(field) for field in struct.flatten()], names=names)
    positions = row_positions(rows.num_rows)
    groups = values.append_column(POSITION, positions).group_by(names, use_threads=False)
    for group in groups.aggregate([(POSITION, "list")]).to_batches():
        for index in range(group.num_rows):
            partition = tuple(group[name][index].as_py() for name in names)
            yield partition, rows.take(group[f"{POSITION}_list"][index].values)


def without(rows: pa.Table, positions: pa.Int64Array) -> pa.Table:
    """Return rows without those at some positions."""
    mask = pc.invert(pc.is_in(row_positions(rows.num_rows), value_set=positions))
    return rows.filter(mask)


def row_positions(count: int, begin: int = 0) -> pa.Int64Array:
    """Return the numbers `[begin, begin + count)`."""
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=begin - 1)


def order_columns(rows: pa.Table) -> list[str]:
    """Return the columns that order changes, the most significant first."""
    return [name for name in rows.column_names if name.startswith(ORDER)]
