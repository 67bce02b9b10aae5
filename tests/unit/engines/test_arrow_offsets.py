"""Arrow data whose empty arrays have no offsets, as Java writes them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.engines.arrow_offsets import with_offsets

# What a missing offset is read from: memory that would be an offset far beyond the data.
NOTHING = pa.py_buffer(b"\x7f" * 64).slice(0, 0)


def no_texts() -> pa.Array:
    return pa.Array.from_buffers(pa.string(), 0, [None, NOTHING, NOTHING])


def no_lists() -> pa.Array:
    kind = pa.list_(pa.string())
    return pa.Array.from_buffers(kind, 0, [None, NOTHING], children=[no_texts()])


def list_of_no_lists() -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), no_lists())


def map_of_nothing() -> pa.Array:
    kind = pa.map_(pa.string(), pa.list_(pa.string()))
    fields = [kind.key_field, kind.item_field]
    entries = pa.StructArray.from_arrays([no_texts(), no_lists()], fields=fields)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(b"\0" * 8)], children=[entries])


CASES = {
    "text": (no_texts, []),
    "list": (no_lists, []),
    "list of lists": (list_of_no_lists, [[]]),
    "map": (map_of_nothing, [[]]),
    "struct": (lambda: pa.StructArray.from_arrays([list_of_no_lists()], ["a"]), [{"a": []}]),
}


@pytest.mark.parametrize("name", CASES)
def test_pyarrow_reads_them(name: str) -> None:
    array, values = CASES[name]
    batch = with_offsets(pa.record_batch([array()], ["c"]))
    assert batch.nbytes < 20
    assert batch.schema.field("c").type == array().type
    assert batch.to_pandas().shape == (len(values), 1)
    assert batch.to_pylist() == [{"c": value} for value in values]


def test_other_batches_are_not_copied() -> None:
    batch = pa.record_batch({"a": [["x"], None], "b": ["y", ""], "c": [{"d": 1}, None]})
    assert with_offsets(batch) is batch
