"""The health of tables of Spark: the figures that Spark shows, and what its procedures change."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.maintenance.health import TableHealth, table_health

PROPERTIES = {
    "write.delete.mode": "merge-on-read",
    "commit.manifest-merge.enabled": "false",
    "history.expire.max-snapshot-age-ms": "1",
    "history.expire.min-snapshots-to-keep": "3",
}


def health(lake: IcebergCatalog, name: str) -> TableHealth:
    table = lake.load(("s", name))
    assert table is not None
    return table_health(table)


def create(spark: Session, name: str, version: int) -> None:
    """Seven files in one partition, three in another, some deleted rows, and a tag."""
    properties = {"format-version": str(version), **PROPERTIES}
    text = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.run(
        f"create table s.{name} (id bigint, p int) using iceberg partitioned by (p) "
        f"tblproperties ({text})"
    )
    for number, partition in enumerate((1, 1, 1, 1, 1, 1, 1, 2, 2, 2)):
        spark.run(
            f"insert into s.{name} select /*+ coalesce(1) */ id, {partition} "
            f"from range({100 * number}, {100 * number + 100})"
        )
        if number == 1:
            spark.run(f"alter table s.{name} create tag early")
    spark.run(f"delete from s.{name} where id in (5, 6, 705)")


@pytest.mark.parametrize("version", [2, 3])
def test_figures_are_those_of_spark(lake: IcebergCatalog, spark: Session, version: int) -> None:
    name = f"health{version}"
    create(spark, name, version)
    before = health(lake, name)
    [(data, rows, size, deletes, deleted)] = as_rows(
        spark.query(
            "select count_if(content = 0), sum(if(content = 0, record_count, 0)), "
            "sum(if(content = 0, file_size_in_bytes, 0)), count_if(content = 1), "
            f"sum(if(content = 1, record_count, 0)) from s.{name}.files"
        )
    )
    assert (before.data_files, before.rows, before.data_bytes) == (data, rows, size)
    assert before.position_files + before.vectors == deletes == before.delete_files
    assert before.position_rows + before.vector_rows == deleted == 3
    assert bool(before.vectors) == (version == 3)
    [(manifests,)] = as_rows(spark.query(f"select count(*) from s.{name}.manifests"))
    [(snapshots,)] = as_rows(spark.query(f"select count(*) from s.{name}.snapshots"))
    assert (before.manifests, before.snapshots) == (manifests, snapshots)
    assert before.partitions == 2


@pytest.mark.slow
def test_procedures_change_what_was_estimated(lake: IcebergCatalog, spark: Session) -> None:
    create(spark, "cured", 2)
    before = health(lake, "cured")
    # The partition with three small files stays as it is.
    assert (before.small_files, before.files_saved) == (7, 6)
    spark.run("call lake.system.rewrite_manifests(table => 's.cured')")
    after = health(lake, "cured")
    assert after.manifests == before.manifests - before.manifests_saved
    spark.run("call lake.system.rewrite_data_files(table => 's.cured')")
    after = health(lake, "cured")
    assert (after.data_files, after.files_saved) == (before.data_files - 6, 0)
    before = after
    assert before.expirable_snapshots == before.snapshots - 3 - 1
    spark.run("call lake.system.expire_snapshots(table => 's.cured')")
    after = health(lake, "cured")
    assert after.snapshots == before.snapshots - before.expirable_snapshots
    assert after.expirable_snapshots == 0
