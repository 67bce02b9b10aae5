"""Adds the offsets that Arrow data from Java lacks; PyArrow crashes without them.

Worker code: the standard library and PyArrow only.
"""

from __future__ import annotations

import pyarrow as pa


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose empty texts, lists and maps have offsets.

    Arrow's Java library, and with it Spark, leaves the buffer of their offsets empty (Arrow
    columnar format, "Variable-size Binary Layout"). `nbytes`, `flatten`, `cast` and `to_pandas` of
    PyArrow read the first offset nevertheless, and end the process.

    Args:
        batch: the rows.
    """
    if not batch.num_rows:
        columns = [pa.nulls(0, field.type) for field in batch.schema]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    if not any(map(_lacks_offsets, batch.columns)):
        return batch
    columns = [_copy(column) if _lacks_offsets(column) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _lacks_offsets(array: pa.Array) -> bool:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _lacks_offsets(array.storage)
    if pa.types.is_struct(kind):
        return any(_lacks_offsets(array.field(number)) for number in range(kind.num_fields))
    if pa.types.is_map(kind):
        return not len(array) or _lacks_offsets(array.keys) or _lacks_offsets(array.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return not len(array) or _lacks_offsets(array.values)
    if pa.types.is_fixed_size_list(kind):
        return _lacks_offsets(array.values)
    return not len(array) and _has_offsets(kind)


def _has_offsets(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _copy(array: pa.Array) -> pa.Array:
    return array.take(pa.array(range(len(array)), pa.int64()))
