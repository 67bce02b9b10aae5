"""Branches of writes whose rows are computed from their table."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.table.update import SetSnapshotRefUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CommitConflict
from dbt.adapters.iceberg_stream.tables.commit.work_branch import WorkBranch
from tests.integration.streams import NAME, make_table
from tests.integration.tables import insert

ROW = pa.record_batch({"id": [1], "part": ["a"], "value": ["x"]})


@pytest.mark.parametrize("is_rolled_back", [False, True])
def test_a_version_that_was_there_meanwhile(lake: IcebergCatalog, is_rolled_back: bool) -> None:
    """The statement may have read it, although the table is as before."""
    make_table(lake)
    insert(lake, "t", ROW)
    branch = WorkBranch(lake, NAME, "w")
    before = branch.begin()
    assert before is not None
    if is_rolled_back:
        insert(lake, "t", ROW)
        base = lake.load(NAME)
        assert base is not None
        main = {"ref-name": "main", "type": "branch", "snapshot-id": before["current-snapshot-id"]}
        lake.commit(base, (), (SetSnapshotRefUpdate.model_validate(main),))
        with pytest.raises(CommitConflict, match="Another writer committed"):
            branch.publish()
        branch.remove()
    else:
        branch.publish()
    after = lake.metadata(NAME)
    assert after is not None
    assert after["current-snapshot-id"] == before["current-snapshot-id"]
    assert list(after["refs"]) == ["main"]
