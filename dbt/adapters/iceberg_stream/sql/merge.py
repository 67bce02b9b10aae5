"""The text of MERGE."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.sql.quoting import quote


@dataclass(frozen=True)
class MergeClauses:
    """What a MERGE does with rows that match, and with those that do not.

    Attributes:
        on: the condition by which rows match.
        target, source: aliases of the table and of the rows that go into it.
        updates: columns of a matched row that take the source's values.
        update_when: which matched rows are updated; empty for all.
        deletes: whether matched rows are deleted, in place of being updated.
        inserts: columns of rows without a match that are inserted; none for no insert.
        insert_when: which of them are inserted; empty for all.
        source_action: what happens to rows of the table without a match, as `delete` or
            `update set …`; empty for nothing.
        source_when: to which of them; empty for all.
    """

    on: str
    target: str = "DBT_INTERNAL_DEST"
    source: str = "DBT_INTERNAL_SOURCE"
    updates: Sequence[str] = field(default=())
    update_when: str = ""
    deletes: bool = False
    inserts: Sequence[str] = field(default=())
    insert_when: str = ""
    source_action: str = ""
    source_when: str = ""


def merge_sql(target: str, source: str, clauses: MergeClauses) -> str:
    """A MERGE statement.

    Args:
        target: the table, as SQL.
        source: a relation, or a query in parentheses.
    """
    lines = [
        f"merge into {target} as {clauses.target}",
        f"using {source} as {clauses.source}",
        f"on {clauses.on}",
    ]
    if clauses.deletes:
        lines.append("when matched then delete")
    elif clauses.updates:
        sets = (f"{quote(name)} = {clauses.source}.{quote(name)}" for name in clauses.updates)
        condition = f" and {clauses.update_when}" if clauses.update_when else ""
        lines.append(f"when matched{condition} then update set {', '.join(sets)}")
    if clauses.inserts:
        names = ", ".join(map(quote, clauses.inserts))
        values = ", ".join(f"{clauses.source}.{quote(name)}" for name in clauses.inserts)
        condition = f" and ({clauses.insert_when})" if clauses.insert_when else ""
        lines.append(f"when not matched{condition} then insert ({names}) values ({values})")
    if clauses.source_action:
        condition = f" and ({clauses.source_when})" if clauses.source_when else ""
        lines.append(f"when not matched by source{condition} then {clauses.source_action}")
    return "\n".join(lines)


def is_changed_sql(columns: Iterable[tuple[str, str]], target: str, source: str) -> str:
    """The condition that a matched row differs from its source.

    Args:
        columns: names and Spark types; none gives a condition that is never true.
        target, source: aliases.
    """
    changed = [
        # Spark compares neither maps nor variants: such a column counts as changed.
        f"not ({target}.{quote(name)} <=> {source}.{quote(name)})"
        if is_comparable(kind)
        else "true"
        for name, kind in columns
    ]
    return f"({' or '.join(changed)})" if changed else "false"


def is_comparable(kind: str) -> bool:
    """Whether Spark compares values of a type: it compares neither maps nor variants."""
    return "map<" not in kind and "variant" not in kind


def keys_match_sql(keys: Iterable[str], target: str, source: str) -> str:
    """The condition that keys are equal, null to null: a null key is a key like any other."""
    pairs = (f"{target}.{quote(key)} <=> {source}.{quote(key)}" for key in keys)
    return " and ".join(pairs)
