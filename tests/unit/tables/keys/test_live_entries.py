"""Which entries are of live rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.tables.keys.live_entries import LiveEntries
from dbt.adapters.iceberg_stream.tables.keys.runs import NULL, pack

NUMBERS = st.integers(0, 5)
POSITIONS = st.integers(0, 40)


@given(
    st.sets(NUMBERS),
    st.dictionaries(NUMBERS, st.sets(POSITIONS)),
    st.lists(st.tuples(NUMBERS, POSITIONS, st.booleans())),
)
def test_rows_that_are_not_deleted_of_files_that_are_there(
    files: set[int], deleted: dict[int, set[int]], rows: list[tuple[int, int, bool]]
) -> None:
    live = LiveEntries(files, {number: BitMap(gone) for number, gone in deleted.items()})
    places = pack(
        np.array([number for number, _, _ in rows], np.int64),
        np.array([position for _, position, _ in rows], np.uint64),
    )
    # Entries of null keys have a bit more.
    places |= np.where([is_null for _, _, is_null in rows], NULL, np.uint64(0)).astype(np.uint64)
    assert live.has(places).tolist() == [
        number in files and position not in deleted.get(number, ()) for number, position, _ in rows
    ]


def test_the_last_position() -> None:
    last = 2**26 - 1
    live = LiveEntries([0], {0: BitMap([last])})
    places = pack(0, np.array([0, last - 1, last], np.uint64))
    assert live.has(places).tolist() == [True, True, False]
