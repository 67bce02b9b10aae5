"""The helper that other tests end with notices what is lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.lost_files import ForeignFiles, assert_nothing_lost
from tests.unit.local_tables import insert, make_catalog, make_table


@pytest.mark.parametrize("pattern", ["*.parquet", "*-m*.avro", "snap-*.avro", "00000-*.json"])
def test_a_file_that_is_missing(tmp_path: Path, pattern: str) -> None:
    lake = make_catalog(tmp_path)
    make_table(lake)
    insert(lake, pa.table({"id": pa.array([1], pa.int64()), "x": ["a"]}))
    assert_nothing_lost(lake)
    (lost,) = (tmp_path / "warehouse" / "s" / "t").rglob(pattern)
    lost.unlink()
    with pytest.raises((AssertionError, OSError), match=lost.name):
        assert_nothing_lost(lake)
    lake.close()


def test_a_foreign_file_that_is_gone_or_changed(tmp_path: Path) -> None:
    foreign = ForeignFiles.create(tmp_path)
    foreign.assert_unchanged()
    (path, text), *_ = foreign.contents.items()
    path.write_text("ours")
    with pytest.raises(AssertionError):
        foreign.assert_unchanged()
    path.write_text(text)
    path.unlink()
    with pytest.raises(AssertionError):
        foreign.assert_unchanged()
