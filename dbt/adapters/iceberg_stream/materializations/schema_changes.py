"""How the columns of an increment differ from those of its table (`on_schema_change`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dbt.adapters.base import Column


def schema_changes(new: Sequence[Column], old: Sequence[Column]) -> dict[str, Any]:
    """Return what dbt's `check_for_schema_changes` does, whatever the letter case of names.

    Args:
        new: columns of the increment.
        old: columns of the table.
    """
    spelled = {column.name.lower(): column for column in old}
    names = {column.name.lower() for column in new}
    added = [column for column in new if column.name.lower() not in spelled]
    removed = [column for column in old if column.name.lower() not in names]
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
    # The names of fields in a type may be in another letter case, too.
    return new.data_type.lower() != old.data_type.lower() and not new.can_expand_to(old)
