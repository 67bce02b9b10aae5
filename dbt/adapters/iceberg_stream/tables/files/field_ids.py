"""Field ids in the schemas of Parquet files.

Worker code: the standard library and PyArrow only.
"""

from __future__ import annotations

import pyarrow as pa

FIELD_ID = b"PARQUET:field_id"
# In the metadata of a field: its value in rows of files without it. Files do not store it.
DEFAULT = b"initial-default"


def field_id(field: pa.Field) -> int | None:
    """Return the id of a file's column; None if it has none.

    Args:
        field: the column.
    """
    number = (field.metadata or {}).get(FIELD_ID)
    return None if number is None else int(number)


def nested_ids(field: pa.Field) -> list[tuple[str, int | None]]:
    """Return names and ids of the fields that are nested in a file's column.

    Args:
        field: the column.
    """
    ids = []
    for child in _children(field.type):
        ids += [(child.name, field_id(child)), *nested_ids(child)]
    return ids


def leaf_ids(field: pa.Field) -> list[int | None]:
    """Return the ids of the columns that a file stores for a field, in their order.

    Args:
        field: the column, which may be nested.
    """
    children = _children(field.type)
    return [number for child in children for number in leaf_ids(child)] or [field_id(field)]


def _children(kind: pa.DataType) -> list[pa.Field]:
    # Writers name the elements of lists and maps differently.
    if pa.types.is_map(kind):
        return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field.with_name("element")]
    return [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
