"""Configs of dbt-spark, dbt-databricks, dbt-trino, dbt-athena and dbt-glue."""

from __future__ import annotations

from typing import Any

import pytest
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.catalog.table_config import TableConfig
from dbt.adapters.iceberg_stream.materializations.model_config import check_model_config


def layout(**config: Any) -> TableConfig:
    node = {"unique_id": "model.shop.orders", "alias": "orders_v2", "config": config}
    return check_model_config(node)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"partitioned_by": ["day(at)"]}, {"partition_by": ["day(at)"]}),
        ({"partitioned_by": "bucket(id, 4)"}, {"partition_by": "bucket(4, id)"}),
        ({"tblproperties": {"a": "b"}}, {"table_properties": {"a": "b"}}),
        ({"location_root": "s3://lake/shop/"}, {"location": "s3://lake/shop/orders_v2"}),
        ({"external_location": "s3://lake/x"}, {"location": "s3://lake/x"}),
        ({"custom_location": "s3://lake/x"}, {"location": "s3://lake/x"}),
        (
            {"compression": "ZSTD", "tblproperties": {"a": "b"}},
            {"table_properties": {"a": "b", "write.parquet.compression-codec": "zstd"}},
        ),
        (
            {"write_compression": "gzip"},
            {"table_properties": {"write.parquet.compression-codec": "gzip"}},
        ),
        ({"file_format": "Iceberg", "table_type": "iceberg", "table_format": "iceberg"}, {}),
        ({"partitioned_by": ["id"], "partition_by": ["id"]}, {"partition_by": ["id"]}),
        # Settings of their engines.
        ({"databricks_compute": "large", "ha": True, "force_batch": True}, {}),
    ],
)
def test_same_meaning(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert layout(**theirs) == layout(**ours)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"file_format": "delta"}, "`file_format: delta` is not supported, because all tables"),
        ({"table_type": "hive"}, "remove it, or write `iceberg`"),
        ({"partitioned_by": ["a"], "partition_by": ["b"]}, "mean the same, but differ"),
        ({"clustered_by": ["id"], "buckets": 8}, "write `partition_by: ['bucket(8, id)']`"),
        ({"bucketed_by": "id"}, "write `partition_by: ['bucket(n, id)']`"),
        ({"liquid_clustered_by": "id"}, "write `sort_order: ['id']`"),
        ({"zorder": ["a", "b"]}, "write `sort_order: ['a', 'b']`"),
        ({"lf_tags_config": {"enabled": True}}, "set them in the catalog"),
        ({"options": {"a": "b"}}, "write Iceberg's table properties into `table_properties`"),
        (
            {
                "properties": {
                    "partitioning": "ARRAY['day(at)', 'bucket(id, 4)']",
                    "sorted_by": "ARRAY['id']",
                    "format": "'ORC'",
                    "format_version": 2,
                }
            },
            "Write `partition_by: ['day(at)', 'bucket(id, 4)']`, `sort_order: ['id']`, "
            "`table_properties: {write.format.default: orc}`, `format_version: 2`",
        ),
        ({"properties": "text"}, "Write Iceberg table properties into `table_properties`"),
        ({"tblproperties": "text"}, "`table_properties` must be a mapping"),
        ({"tblproperties": "text", "compression": "zstd"}, "`table_properties` must be a mapping"),
    ],
)
def test_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CompilationError) as raised:
        layout(**config)
    assert message in str(raised.value)
