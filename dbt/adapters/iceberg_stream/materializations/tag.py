"""`tag_on_success`: tags the snapshot that a model has built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from dbt.adapters.base import BaseRelation
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be
from dbt.adapters.iceberg_stream.relation import published_name, table_name
from dbt.adapters.iceberg_stream.tables.commit.tags import Tag, set_tag, tag_error

logger = Logger()

OPTION = "tag_on_success"
KEYS = ("name", "retention", "replace")
RETENTION = re.compile(r"([1-9]\d*) (hour|day|week)s?")


def parse_tag(config: Mapping[str, Any]) -> tuple[Tag | None, list[str]]:
    """Parse `tag_on_success`.

    Args:
        config: the model's config.

    Returns:
        The tag, None without one; and a message for each error.
    """
    value = config.get(OPTION)
    if value is None:
        return None, []
    options = value if isinstance(value, Mapping) else {"name": value}
    name, retention = options.get("name"), options.get("retention")
    errors = [
        f"`{OPTION}` has the unknown key `{key}`: the keys are {', '.join(KEYS)}"
        for key in options
        if key not in KEYS
    ]
    if not isinstance(name, str) or not name.strip():
        errors.append(must_be(OPTION, value, "the name of a tag, or a mapping with `name`"))
    match = None if retention is None else RETENTION.fullmatch(str(retention))
    if retention is not None and match is None:
        errors.append(must_be(f"{OPTION}.retention", retention, "hours, days or weeks: 90 days"))
    if not isinstance(replace := options.get("replace", False), bool):
        errors.append(must_be(f"{OPTION}.replace", replace, "true or false"))
    errors += _refused(config)
    if errors:
        return None, errors
    age = None if match is None else timedelta(**{f"{match[2]}s": int(match[1])})
    return Tag(str(name), age, replace), []


def _refused(config: Mapping[str, Any]) -> list[str]:
    """Return why a kind of model cannot be tagged; views in the same folder are left out."""
    if config.get("materialized") == "stream":
        kind = "`stream` models, which may never end"
    elif config.get("incremental_strategy") == "microbatch":
        kind = "`incremental_strategy: microbatch`, whose batches end one by one"
    else:
        return []
    return [f"`{OPTION}` cannot be used with {kind}: set it to null there, and tag in a later step"]


def check_tag(catalog: IcebergCatalog, relation: BaseRelation, model: Mapping[str, Any]) -> None:
    """Check before a model runs that its table can get the tag.

    Args:
        catalog: the profile's catalog.
        relation: the model's table.
        model: the model's node in dbt's graph.

    Raises:
        CompilationError: the table has the tag, and it must not be moved.
    """
    tag, _ = parse_tag(model["config"])
    if tag is None:
        return
    name = published_name(relation)
    metadata = catalog.metadata(name)
    if metadata is not None and (error := tag_error(metadata, name, tag)):
        raise CompilationError(f"`{OPTION}` of {model['unique_id']}: {error}")


def tag_table(catalog: IcebergCatalog, relation: BaseRelation, model: Mapping[str, Any]) -> None:
    """Set the tag of a model that has been built and published.

    Args:
        catalog: the profile's catalog.
        relation: the model's table.
        model: the model's node in dbt's graph.

    Raises:
        CatalogError: the tag cannot be set; the table has its new rows.
    """
    tag, _ = parse_tag(model["config"])
    if tag is not None:
        name = table_name(relation)
        branch = getattr(relation, "branch", None)
        snapshot_id = set_tag(catalog, name, tag, branch or MAIN)
        logger.info(f"Tagged snapshot {snapshot_id} of {'.'.join(name)} as `{tag.name}`")
