"""Build MERGE statements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.sql.comparisons import comparable_sql
from dbt.adapters.iceberg_stream.sql.quoting import quote


@dataclass(frozen=True)
class MergeClauses:
    """The clauses of a MERGE.

    Attributes:
        on: the condition for a match.
        target, source: aliases of the table and of the new rows.
        updates: columns that a matched row gets from the source.
        update_when: condition for updates, as an operand; empty to update all matched rows.
        deletes: whether matched rows are deleted instead of updated.
        inserts: columns to insert of rows without a match; none for no insert.
        insert_when: condition for inserts, as an operand; empty to insert all rows without a match.
        source_action: the action for rows of the table without a match, `delete` or
            `update set …`; empty for none.
        source_when: condition for that action, as an operand; empty for all these rows.
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
    """Return a MERGE statement.

    Args:
        target: the table, as SQL.
        source: a relation, or a query in parentheses.
        clauses: the clauses.
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
        condition = f" and {clauses.insert_when}" if clauses.insert_when else ""
        lines.append(f"when not matched{condition} then insert ({names}) values ({values})")
    if clauses.source_action:
        condition = f" and {clauses.source_when}" if clauses.source_when else ""
        lines.append(f"when not matched by source{condition} then {clauses.source_action}")
    return "\n".join(lines)


def as_operand(condition: str | None) -> str:
    """Return a condition of the user's in parentheses, so that it can be one operand of others.

    Args:
        condition: SQL, which may end with a comment; None or empty for no condition.

    Returns:
        The operand; empty for no condition.
    """
    return f"({condition}\n)" if condition else ""


def is_changed_sql(columns: Iterable[tuple[str, str]], target: str, source: str) -> str:
    """Return the condition that a matched row differs from its source; fields match by their names.

    Args:
        columns: names and Spark types; none gives a condition that is never true.
        target, source: aliases.
    """
    changed = [
        f"not ({comparable_sql(f'{target}.{quote(name)}', kind, by_name=True)}"
        f" <=> {comparable_sql(f'{source}.{quote(name)}', kind, by_name=True)})"
        for name, kind in columns
    ]
    return f"({' or '.join(changed)})" if changed else "false"


def keys_match_sql(keys: Iterable[str], target: str, source: str) -> str:
    """Return the condition that keys are equal; null equals null.

    Args:
        keys: names of the key's columns.
        target, source: aliases.
    """
    pairs = (f"{target}.{quote(key)} <=> {source}.{quote(key)}" for key in keys)
    return " and ".join(pairs)
