"""Arrow's values as Python's, also those that Python does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column.

    Dates before the year 1 and after 9999 become strings, and bytes that are not UTF-8 are
    replaced in strings.

    Args:
        column: the values.
    """
    try:
        return list(column.to_pylist())
    except (OverflowError, UnicodeDecodeError, ValueError):
        return [_python_value(value) for value in column]


def _python_value(value: pa.Scalar) -> Any:
    import pyarrow as pa

    try:
        return value.as_py()
    except (OverflowError, UnicodeDecodeError, ValueError):
        pass
    kind = value.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return bytes(value.as_buffer()).decode(errors="replace")
    if pa.types.is_struct(kind):
        return {name: _python_value(value[name]) for name in value}
    if pa.types.is_map(kind):
        return [tuple(_python_value(entry[n]) for n in (0, 1)) for entry in value.values]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_python_value(item) for item in value.values]
    return str(value.cast(pa.string()))
