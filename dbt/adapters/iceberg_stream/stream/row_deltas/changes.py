"""Changes as tables of Arrow: what comes along with a row, and how changes of a key are told apart.

Worker code: the standard library, PyArrow and other worker code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.tables.files.casting import stored_values

# What comes along with a change's columns: what orders the changes of a key, whether it deletes
# the key's row, and the values of the partition fields.
ORDER = "__stream_order_"
DELETED = "__stream_deleted"
PARTITION = "__stream_partition"
PLACE = "__place"

Partition = tuple[Any, ...]


def last_changes(changes: pa.Table, keys: Sequence[str], ordered: bool = False) -> pa.Table:
    """The last change of each key, in their order."""
    if not ordered:
        changes = changes.sort_by([(name, "ascending") for name in order_columns(changes)])
    places = row_positions(changes.num_rows)
    numbered = changes.select(list(keys)).append_column(PLACE, places)
    last = numbered.group_by(list(keys), use_threads=False).aggregate([(PLACE, "max")])
    if last.num_rows == changes.num_rows:
        return changes
    return changes.take(last[f"{PLACE}_max"].combine_chunks().sort())


def chunks(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Rows gathered to tables of about so many bytes."""
    held: list[pa.RecordBatch] = []
    bytes_held = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        bytes_held += batch.nbytes
        if bytes_held >= size:
            yield pa.Table.from_batches(held).combine_chunks()
            held, bytes_held = [], 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def split(rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
    """Rows by their partition, by its stored values; all of them where the table has none."""
    if not rows.num_rows:
        return
    if PARTITION not in rows.column_names:
        yield (), rows
        return
    struct = rows[PARTITION].combine_chunks()
    names = [f"f{number}" for number in range(struct.type.num_fields)]
    values = pa.table([stored_values(field) for field in struct.flatten()], names=names)
    places = row_positions(rows.num_rows)
    groups = values.append_column(PLACE, places).group_by(names, use_threads=False)
    for group in groups.aggregate([(PLACE, "list")]).to_batches():
        for index in range(group.num_rows):
            partition = tuple(group[name][index].as_py() for name in names)
            yield partition, rows.take(group[f"{PLACE}_list"][index].values)


def later(first: list[pa.ChunkedArray], second: list[pa.ChunkedArray]) -> pa.BooleanArray:
    """Where the first comes after the second, column by column."""
    later = pa.array([False] * len(first[0]), pa.bool_())
    same = pa.array([True] * len(first[0]), pa.bool_())
    for a, b in zip(first, second, strict=True):
        one, other = a.combine_chunks(), b.combine_chunks()
        later = pc.or_(later, pc.and_(same, pc.greater(one, other)))
        same = pc.and_(same, pc.equal(one, other))
    return later


def without(rows: pa.Table, places: pa.Int64Array) -> pa.Table:
    kept = pc.invert(pc.is_in(row_positions(rows.num_rows), value_set=places))
    return rows.filter(kept)


def row_positions(count: int, begin: int = 0) -> pa.Int64Array:
    """So many numbers, from the first one on."""
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=begin - 1)


def order_columns(rows: pa.Table) -> list[str]:
    return [name for name in rows.column_names if name.startswith(ORDER)]
