"""Parse a model's config into typed objects, and report all its errors in one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.builds.settings import ATOMIC, PUBLISH_CHOICES
from dbt.adapters.iceberg_stream.catalog.table_config import TableConfig, parse_table_config
from dbt.adapters.iceberg_stream.errors.wrong_values import misspelled, must_be, must_be_one_of
from dbt.adapters.iceberg_stream.maintenance.settings import parse_maintenance
from dbt.adapters.iceberg_stream.materializations.branches import branch_errors
from dbt.adapters.iceberg_stream.materializations.other_adapters import translate_config
from dbt.adapters.iceberg_stream.materializations.strategies import (
    OPTIONS,
    incremental_errors,
    strategy_of,
)
from dbt.adapters.iceberg_stream.materializations.tag import parse_tag
from dbt.adapters.iceberg_stream.summary.row_drop import row_drop_errors

UPDATE_CHOICES = ("merge_update_columns", "merge_exclude_columns")
READ_DELETES = ("spark", "once", "auto")

GRANTS_REFUSED = (
    "`grants` cannot be applied: privileges on Iceberg tables are kept by the catalog, and Spark "
    "has no GRANT. Grant them in the catalog and remove the config"
)

MAINTENANCE_REFUSED = (
    "`maintenance` cannot be used with {kind}: remove the config and schedule `iceberg-stream "
    "maintain`, which can run beside other writers"
)


def check_model_config(model: Mapping[str, Any]) -> TableConfig:
    """Parse the layout and check all options of a model, before it runs.

    Args:
        model: the model's node in dbt's graph.

    Raises:
        CompilationError: the config has errors; lists each with what to do.
    """
    given = {k: v for k, v in dict(model["config"]).items() if v is not None}
    config, foreign_errors = translate_config(given, str(model.get("alias") or ""))
    layout, errors = parse_table_config(config)
    errors += foreign_errors + misspelled(config, OPTIONS)
    if config.get("materialized") == "incremental":
        errors += incremental_errors(config)
    if (reads := config.get("read_deletes", "spark")) not in READ_DELETES:
        errors.append(must_be_one_of("read_deletes", reads, READ_DELETES))
    errors += _maintenance_errors(config)
    errors += row_drop_errors(config)
    errors += parse_tag(config)[1]
    errors += branch_errors(model)
    for key in ("deterministic", "skip_unchanged"):
        if not isinstance(value := config.get(key, False), bool):
            errors.append(must_be(key, value, "true or false"))
    if "read_at" in config:
        from dbt.adapters.iceberg_stream.materializations.time_travel import read_at_errors

        errors += read_at_errors(model)
    if (publish := config.get("publish", ATOMIC)) not in PUBLISH_CHOICES:
        errors.append(must_be_one_of("publish", publish, PUBLISH_CHOICES))
    if config.get("grants"):
        errors.append(GRANTS_REFUSED)
    if errors:
        lines = "\n".join(f"  - {error}" for error in errors)
        raise CompilationError(f"The config of {model['unique_id']} has errors:\n{lines}")
    return layout


def _maintenance_errors(config: Mapping[str, Any]) -> list[str]:
    settings, errors = parse_maintenance(config.get("maintenance"))
    errors = [f"`maintenance`: {error}" for error in errors]
    if settings is not None and config.get("materialized") == "stream":
        errors.append(MAINTENANCE_REFUSED.format(kind="`stream` models, which may never end"))
    if settings is not None and config.get("incremental_strategy") == "microbatch":
        batches = "`incremental_strategy: microbatch`, whose batches may run at the same time"
        errors.append(MAINTENANCE_REFUSED.format(kind=batches))
    return errors


def check_named_columns(
    model: Mapping[str, Any], returned: Sequence[str], of_table: Sequence[str]
) -> None:
    """Check that the columns that a model's config names exist.

    Args:
        model: the model's node in dbt's graph.
        returned: the columns that the query returns.
        of_table: the columns of the table, if it exists.

    Raises:
        CompilationError: the query lacks a column of the key, or a column whose updates the config
            chooses is in neither the query nor the table.
    """
    _require_columns(model, "unique_key", returned)
    if strategy_of(model["config"]) == "merge":
        for key in UPDATE_CHOICES:
            _require_columns(model, key, returned, of_table)


def names_unknown_updates(model: Mapping[str, Any], of_table: Sequence[str]) -> bool:
    """Return whether a model's config chooses updates of columns that its table does not have.

    Args:
        model: the model's node in dbt's graph.
        of_table: the columns of the table.
    """
    return any(_missing(model, key, of_table) for key in UPDATE_CHOICES)


def _require_columns(
    model: Mapping[str, Any], key: str, returned: Sequence[str], of_table: Sequence[str] = ()
) -> None:
    if missing := _missing(model, key, (*returned, *of_table)):
        raise CompilationError(
            f"`{key}` of {model['unique_id']} names {', '.join(f'`{name}`' for name in missing)}, "
            f"which the model does not return. It returns: {', '.join(returned)}. Add the column "
            f"to the query, or correct `{key}`."
        )


def _missing(model: Mapping[str, Any], key: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that a config names and that are not among others, in any letter case."""
    value = model["config"].get(key)
    names = [value] if isinstance(value, str) else list(value or [])
    known = {column.lower() for column in columns}
    return [name for name in names if name.strip("`").lower() not in known]
