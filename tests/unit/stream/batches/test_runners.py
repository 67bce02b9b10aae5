"""What comes back from the tasks of a cluster."""

from __future__ import annotations

import datetime
import os
import pickle
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.stream.batches.runners import read_deltas
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import (
    DATA,
    Delta,
    _as_rows,
    run_task,
    write_changes,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import NewData, SubBatch
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile
from tests.unit.stream.row_deltas.test_sub_batches import ORDERED_STEPS, Step, batches, plan

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


def test_what_tasks_have_done_comes_back(tmp_path: Path) -> None:
    file = WrittenFile("file:/x.parquet", 12, b"footer", 1)
    data = NewData(file, PARTITION, pa.array([1, 3], pa.int64()))
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    delta = Delta([SubBatch([data], [(file, ())])], 5, 3, 2, moment, moment)
    made = plan(tmp_path)
    assert read_deltas(made, _as_rows(made, delta).to_pylist()) == [delta]
    assert read_deltas(made, _as_rows(made, Delta()).to_pylist()) == [Delta()]


@given(steps=ORDERED_STEPS, rows=st.integers(1, 9), keeps_keys=st.booleans())
@settings(max_examples=50, deadline=None)
def test_tasks_tell_what_this_process_knows(steps: list[Step], rows: int, keeps_keys: bool) -> None:
    """The places of rows, and the deletes; their files are removed when they are read."""
    steps = [replace(step, v=step.v and step.order) for step in steps]
    by_order = sorted(steps, key=lambda step: step.order or 0)
    with TemporaryDirectory() as folder:
        made = plan(Path(folder), sequence_by=("v",), max_keys=100, keeps_keys=keeps_keys)
        here = write_changes(made, batches(by_order, rows))
        (result,) = run_task(made, batches(by_order, rows))
        (there,) = read_deltas(made, result.to_pylist())
        assert list(map(contents, there.sub_batches)) == list(map(contents, here.sub_batches))
        files = [(len(sub.data), len(sub.equality_deletes)) for sub in there.sub_batches]
        assert len(list(Path(folder).iterdir())) == 2 * sum(map(sum, files))


def contents(sub: SubBatch) -> list[Any]:
    tables = [
        table for table in (sub.changed_keys, sub.deletes) if table is not None and table.num_rows
    ]
    return [sorted(map(repr, table.to_pylist())) for table in tables]


@pytest.mark.parametrize("column", ["totals", "partition"])
def test_what_tasks_send_is_not_run(tmp_path: Path, column: str) -> None:
    mark = tmp_path / "run"
    file = WrittenFile("file:/x.parquet", 12, b"footer", 1)
    row = {"task": "t", "totals": None, "sub_batch": 0, "file": vars(file)}
    row |= {"content": DATA, "dead": []}
    with pytest.raises(pa.ArrowInvalid):
        read_deltas(plan(tmp_path), [row | {column: pickle.dumps(Evil(mark))}])
    assert not mark.exists()
