"""Configs of models that were written for other adapters: read, or refused with what to write.

docs/from_other_adapters.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CODEC = "write.parquet.compression-codec"
# Configs with the same meaning under another name.
SAME = {
    "partitioned_by": "partition_by",
    "tblproperties": "table_properties",
    "custom_location": "location",
    "external_location": "location",
    "s3_data_dir": "location",
}
# Configs that name the codec of Parquet files.
CODECS = ("compression", "write_compression")
ICEBERG = {"file_format": "iceberg", "table_format": "iceberg", "table_type": "iceberg"}
ARRAY = re.compile(r"^\s*array\s*\[(.*)\]\s*$", re.IGNORECASE | re.DOTALL)
ITEM = re.compile(r"'([^']*)'")
CLUSTERED = "write `sort_order: {value}`, and let `maintenance` or `iceberg-stream maintain` sort"
BUCKETS = "write `partition_by: ['bucket({number}, {column})']`"
TAGS = "the adapter sets no tags and privileges: set them in the catalog, and remove the config"
REFUSED = {
    "auto_liquid_cluster": "write the columns into `sort_order`",
    "databricks_tags": TAGS,
    "lf_grants": TAGS,
    "lf_inherited_tags": TAGS,
    "lf_tags_config": TAGS,
    "options": "write Iceberg's table properties into `table_properties`",
}


def translate_config(
    config: Mapping[str, Any], identifier: str
) -> tuple[dict[str, Any], list[str]]:
    """Translate the configs of other adapters.

    Args:
        config: a model's config.
        identifier: of the model's table.

    Returns:
        The config in the words of this adapter, and a message for each config without a
        counterpart.
    """
    own, errors = dict(config), list[str]()
    for theirs, ours in SAME.items():
        if theirs in own:
            _set(own, errors, ours, own.pop(theirs), theirs)
    if root := own.pop("location_root", None):
        _set(own, errors, "location", f"{str(root).rstrip('/')}/{identifier}", "location_root")
    properties = own.get("table_properties") or {}
    for key in CODECS:
        if (codec := own.pop(key, None)) and isinstance(properties, Mapping):
            own["table_properties"] = {CODEC: str(codec).lower(), **properties}
    for key, value in ICEBERG.items():
        if str(own.get(key) or value).lower() != value:
            errors.append(
                f"`{key}: {own[key]}` is not supported, because all tables are Iceberg tables: "
                f"remove it, or write `{value}`"
            )
    return own, errors + _refusals(own)


def _set(config: dict[str, Any], errors: list[str], ours: str, value: Any, theirs: str) -> None:
    if config.setdefault(ours, value) != value:
        errors.append(f"`{theirs}` and `{ours}` mean the same, but differ: remove `{theirs}`")


def _refusals(config: Mapping[str, Any]) -> list[str]:
    errors = [f"`{key}`: {advice}" for key, advice in REFUSED.items() if config.get(key)]
    for key in ("liquid_clustered_by", "zorder"):
        if columns := config.get(key):
            errors.append(f"`{key}`: {CLUSTERED.format(value=_columns(columns))}")
    for columns_key, number_key in (("clustered_by", "buckets"), ("bucketed_by", "bucket_count")):
        if columns := config.get(columns_key):
            number = config.get(number_key) or "n"
            advice = BUCKETS.format(number=number, column=_columns(columns)[0])
            errors.append(f"`{columns_key}`: {advice}")
    if properties := config.get("properties"):
        errors.append(f"`properties`: {_properties_advice(properties)}")
    return errors


def _columns(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


def _properties_advice(properties: Any) -> str:
    """Return what to write instead of dbt-trino's `properties`, whose values are Trino SQL."""
    advice = []
    for key, value in properties.items() if isinstance(properties, Mapping) else ():
        array = ARRAY.match(str(value))
        plain: Any = ITEM.findall(array[1]) if array else str(value).strip("'")
        name = {"partitioning": "partition_by", "sorted_by": "sort_order"}.get(key, key)
        if name in ("partition_by", "sort_order", "location", "format_version"):
            advice.append(f"`{name}: {plain}`")
        elif key == "format":
            advice.append(f"`table_properties: {{write.format.default: {str(plain).lower()}}}`")
    return (
        "Trino's table properties are not read. Write "
        f"{', '.join(advice) or 'Iceberg table properties into `table_properties`'}"
    )
