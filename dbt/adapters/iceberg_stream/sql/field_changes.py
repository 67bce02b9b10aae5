"""How the fields within a column's type change."""

from __future__ import annotations

from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.sql.comparisons import split_field, split_type

NESTED = ("struct", "array", "map")
Path = tuple[str, ...]


@dataclass
class FieldChanges:
    """What a type has otherwise than an older one; the order of fields means nothing.

    Attributes:
        added: paths and types of new fields, as `alter table … add columns` names them.
        missing: paths of fields that it does not have.
        retyped: whether another part has another type.
    """

    added: list[tuple[Path, str]] = field(default_factory=list)
    missing: list[Path] = field(default_factory=list)
    retyped: bool = False


def field_changes(old: str, new: str) -> FieldChanges:
    """Compare two types of a column, whatever the letter case of names.

    Args:
        old, new: the types, in Spark's words.
    """
    changes = FieldChanges()
    _compare(old, new, (), changes)
    return changes


def _compare(old: str, new: str, path: Path, changes: FieldChanges) -> None:
    if old.lower() == new.lower():
        return
    (outer, _, before), (other, _, after) = old.partition("<"), new.partition("<")
    if outer not in NESTED or outer != other:
        changes.retyped = True
        return
    parts, new_parts = (list(split_type(inner[:-1], ",")) for inner in (before, after))
    if outer == "array":
        _compare(parts[0], new_parts[0], (*path, "element"), changes)
    elif outer == "map":
        changes.retyped = changes.retyped or parts[0].lower() != new_parts[0].lower()
        _compare(parts[1], new_parts[1], (*path, "value"), changes)
    else:
        _compare_fields(parts, new_parts, path, changes)


def _compare_fields(
    parts: list[str], new_parts: list[str], path: Path, changes: FieldChanges
) -> None:
    fields = {name.lower(): (name, kind) for name, kind in map(split_field, parts)}
    for name, kind in map(split_field, new_parts):
        if name.lower() not in fields:
            changes.added.append(((*path, name), kind))
            continue
        spelled, old_kind = fields.pop(name.lower())
        _compare(old_kind, kind, (*path, spelled), changes)
    changes.missing += [(*path, name) for name, _ in fields.values()]
