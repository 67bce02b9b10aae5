"""What comes back from the tasks of a cluster."""

from __future__ import annotations

import datetime
import os
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.batches.runners import read_deltas
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import Delta, _as_rows
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import NewData, SubBatch
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile

UTC = datetime.timezone.utc
PARTITION = (
    None, True, 12, -(2**62), 1.5, "größe", b"\x00\xff", Decimal("1.50"), datetime.date(1969, 1, 2),
)  # fmt: skip


class Evil:
    """What runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


def test_what_tasks_have_done_comes_back() -> None:
    file = WrittenFile("file:/x.parquet", 12, b"footer", 1)
    data = NewData(file, PARTITION, pa.array([1, 3], pa.int64()))
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    delta = Delta([SubBatch([data], [(file, ())])], 5, 3, 2, moment, moment)
    assert read_deltas(_as_rows(delta).to_pylist()) == [delta]
    assert read_deltas(_as_rows(Delta()).to_pylist()) == [Delta()]


@pytest.mark.parametrize("column", ["totals", "partition"])
def test_what_tasks_send_is_not_run(tmp_path: Path, column: str) -> None:
    mark = tmp_path / "run"
    file = WrittenFile("file:/x.parquet", 12, b"footer", 1)
    row = {"task": "t", "totals": None, "sub_batch": 0, "file": vars(file), "is_data": False}
    with pytest.raises(pa.ArrowInvalid):
        read_deltas([row | {column: pickle.dumps(Evil(mark))}])
    assert not mark.exists()
