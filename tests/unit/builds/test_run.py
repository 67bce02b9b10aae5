"""Relations that a command stages again."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.builds.errors import BuildConflict
from dbt.adapters.iceberg_stream.builds.names import staged_name
from dbt.adapters.iceberg_stream.builds.publish import publish
from dbt.adapters.iceberg_stream.builds.run import VIEW as VIEW_KIND
from dbt.adapters.iceberg_stream.builds.run import BuildRun
from dbt.adapters.iceberg_stream.builds.settings import BuildSettings
from tests.unit.catalog.test_locations import VIEW
from tests.unit.local_tables import NAME, make_catalog, make_table


@pytest.mark.parametrize("is_table", [False, True])
def test_a_view_is_staged_again(tmp_path: Path, is_table: bool) -> None:
    """A catalog may keep the age of the same view, which `publish` compares with the table's."""
    lake = make_catalog(tmp_path)
    staged = staged_name(NAME, "pr")
    lake.put_view(staged, VIEW)
    time.sleep(0.002)
    if is_table:
        make_table(lake)
        with pytest.raises(BuildConflict, match="was created or changed by another writer"):
            publish(lake, "pr", [(NAME, VIEW_KIND)])
    settings = BuildSettings("pr", publishes=False, continues=True, keep=timedelta(days=1))
    run = BuildRun(settings, lambda: lake, lambda *_: None, lambda _: None)
    assert run.stage(NAME, VIEW_KIND, {}) is not is_table
    assert (lake.metadata(staged) is None) is is_table
    lake.put_view(staged, VIEW)
    publish(lake, "pr", [(NAME, VIEW_KIND)])
    assert lake.relations("s") == [("t", "view")]
    lake.close()
