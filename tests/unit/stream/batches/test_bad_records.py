"""Bad records of batches that are written at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords


def test_batches_write_to_the_table_one_after_the_other() -> None:
    writing, written = threading.Lock(), list[str]()

    def write(rows: pa.Table) -> None:
        assert writing.acquire(blocking=False), "another batch creates the table"
        threading.Event().wait(0.05)
        written.extend(rows["place"].to_pylist())
        writing.release()

    bad_records = BadRecords(write, "t__dead_letters", 3)
    with ThreadPoolExecutor(3) as threads:
        counts = list(threads.map(lambda name: bad_records.handle_files({name: "is bad"}), "abc"))
    assert (counts, sorted(written), bad_records.count) == ([1, 1, 1], ["a", "b", "c"], 3)
