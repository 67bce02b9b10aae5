"""How the columns of an increment differ from those of its table (`on_schema_change`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from dbt.adapters.base import Column
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.sql.field_changes import field_changes
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.type_changes import may_lose


def schema_changes(new: Sequence[Column], old: Sequence[Column]) -> dict[str, Any]:
    """Return what dbt's `check_for_schema_changes` does, whatever the letter case of names.

    New fields within columns are among the new columns, with their paths.

    Args:
        new: columns of the increment.
        old: columns of the table.
    """
    spelled = {column.name.lower(): column for column in old}
    names = {column.name.lower() for column in new}
    added = [column for column in new if column.name.lower() not in spelled]
    removed = [column for column in old if column.name.lower() not in names]
    added += [
        field
        for column in new
        if column.name.lower() in spelled
        for field in _added_fields(column, spelled[column.name.lower()])
    ]
    retyped = [
        {"column_name": spelled[column.name.lower()].name, "new_type": column.data_type}
        for column in new
        if column.name.lower() in spelled and _is_retyped(column, spelled[column.name.lower()])
    ]
    # The statements that follow name the columns as the table does.
    source = [
        replace(column, column=spelled[column.name.lower()].name)
        if column.name.lower() in spelled
        else column
        for column in new
    ]
    return {
        "schema_changed": bool(added or removed or retyped),
        "source_not_in_target": added,
        "target_not_in_source": removed,
        "source_columns": source,
        "target_columns": list(old),
        "new_target_types": retyped,
    }


def _is_retyped(new: Column, old: Column) -> bool:
    """Return whether a column must get another type; a narrower one fits into the old one."""
    changes = field_changes(old.data_type, new.data_type)
    return bool(changes.retyped or changes.missing) and not new.can_expand_to(old)


def _added_fields(new: Column, old: Column) -> list[Column]:
    """Return the new fields of a column; none if it lacks others, and so cannot be written."""
    changes = field_changes(old.data_type, new.data_type)
    if changes.missing:
        return []
    paths = [((old.name, *path), kind) for path, kind in changes.added]
    return [
        cast(Column, replace(cast(Any, new), column=".".join(path), dtype=kind, path=path))
        for path, kind in paths
    ]


def check_fields(model: Mapping[str, Any], new: Sequence[Column], old: Sequence[Column]) -> None:
    """Check that the fields within the columns of an increment are those of its table.

    Args:
        model: the model's node in dbt's graph.
        new: columns of the increment.
        old: columns of the table.

    Raises:
        CompilationError: a field is missing, or is new and is not to be added.
    """
    on_change = model["config"].get("on_schema_change") or "ignore"
    if on_change == "fail":
        return  # dbt's own check refuses each change
    by_name = {column.name.lower(): column for column in old}
    for column in new:
        if (existing := by_name.get(column.name.lower())) is None:
            continue
        changes = field_changes(existing.data_type, column.data_type)
        if changes.missing:
            raise CompilationError(
                f"{model['unique_id']} does not return {_names(existing, changes.missing)}, which "
                "its table has. Return the fields, as null if need be, or rebuild the table with "
                "--full-refresh."
            )
        if changes.added and on_change == "ignore":
            raise CompilationError(
                f"{model['unique_id']} returns {_names(existing, [p for p, _ in changes.added])}, "
                "which its table does not have. Set `on_schema_change: append_new_columns` to add "
                "new fields to the table, or leave them out of the query."
            )


def lossy_keys(
    config: Mapping[str, Any], staging: str, new: Sequence[Column], old: Sequence[Column]
) -> list[dict[str, str]]:
    """Return the columns of a key whose values the table may not store exactly.

    Spark compares such a value before it stores it, so each run would insert its row again.

    Args:
        config: the model's.
        staging: the increment, in SQL.
        new: columns of the increment.
        old: columns of the table.

    Returns:
        `name` and `type` of each column of the table, `sql` that queries one lost value, and what
        to do about it (`cure`).
    """
    if config.get("skip_not_matched_step"):
        return []  # inserts nothing
    unique_key = config.get("unique_key") or ()
    names = [unique_key] if isinstance(unique_key, str) else unique_key
    keys = {name.replace("`", "").lower() for name in names}
    by_name = {column.name.lower(): column for column in old if "<" not in column.data_type}
    lossy = []
    for column in new:
        stored = by_name.get(column.name.lower())
        if stored is None or column.name.lower() not in keys:
            continue
        value, kind = quote(column.name), stored.data_type
        if getattr(stored, "is_uuid", False):
            kind, cure = "uuid", f"Write it as lower({value})"
            is_lost = f"not {value} <=> lower({value})"
        elif may_lose(column.data_type, kind):
            kept, cure = f"try_cast({value} as {kind})", f"Cast {value} to {kind}"
            back = f"try_cast({kept} as {column.data_type})"
            # MERGE compares the value with what was stored, perhaps as a third type.
            is_lost = f"case when {value} <=> {back} then not {value} <=> {kept} else true end"
        else:
            continue
        sql = f"select cast({value} as string) from {staging} where {is_lost} limit 1"
        lossy.append({"name": stored.name, "type": kind, "sql": sql, "cure": cure})
    return lossy


def _names(column: Column, paths: Sequence[Sequence[str]]) -> str:
    return ", ".join(f"`{'.'.join((column.name, *path))}`" for path in paths)
