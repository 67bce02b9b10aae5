"""What a model's queries have read of its own table, from which its rows may be computed.

`run_query('select max(id) from ' ~ this)` runs before the model's statement, whose text does not
say that its rows depend on the table. The same holds for a hook.
"""

from __future__ import annotations

from dataclasses import replace

from dbt_common.events.contextvars import get_node_info
from sqlglot.dialects import Spark
from sqlglot.errors import TokenError
from sqlglot.tokens import TokenType

from dbt.adapters.iceberg_stream.builds.names import without_build
from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
from dbt.adapters.iceberg_stream.sessions.session_handle import SessionHandle
from dbt.adapters.iceberg_stream.sql.queries import reads
from dbt.adapters.iceberg_stream.sql.reads import CURRENT, NameParts, Reads
from dbt.adapters.iceberg_stream.sql.statements import classify
from dbt.adapters.iceberg_stream.tables.commit.read_check import NOTHING, ReadCheck
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet

# Statements from whose rows, variables or tables the rows of later ones may be computed.
READING_VERBS = {
    *("select", "with", "values", "from", "table", "(", "map", "reduce", "cache"),
    *("set", "declare", "execute", "begin", "create", "replace", "insert", "merge", "update"),
    "delete",
}
# Statements whose rows are computed. They depend on what was read before.
COMPUTING_VERBS = {"insert", "merge", "update", "delete"}
TEXTS = {TokenType.STRING, TokenType.RAW_STRING}
# What their statements write depends on no earlier version.
REPLACING = {"table", "view"}


def note_query(
    handle: SessionHandle, sql: str, verb: str, target: QualifiedName | None = None
) -> None:
    """Note what a statement reads of the table of the node that runs it, before it runs.

    Statements of the node's materialization do not count: they compute no rows.

    Args:
        handle: the node's session.
        sql: the statement.
        verb: its first word.
        target: the table that it changes. A write of the node's own table is checked itself.
    """
    node = get_node_info() or {}
    if verb not in READING_VERBS or handle.nodes.is_materializing(str(node.get("unique_id"))):
        return
    if (relation := _own_relation()) is None:
        return
    if node.get("materialized") == "ephemeral":
        # Its text is part of the models that read it, which dbt does not name here.
        handle.nodes.note_ephemeral(str(node["unique_id"]), handle.read_set(sql))
        return
    mentions = _mentions(sql, relation[-1])
    if node.get("materialized") in REPLACING and not mentions:
        return
    own = handle.catalogs.find_qualified(relation)
    if own is None or (target is not None and _are_same(target, own)):
        return
    if any(_are_same(name, own) for name in handle.own_reads.read_set.versions):
        return  # the first query decides: its rows are the oldest ones
    table = handle.nodes.read_as(*relation)
    read_set = handle.read_set(sql)
    # `identifier(…)` may read it, and what is not understood.
    if _reads_current(read_set, own) or (mentions and not read_set.is_complete):
        _note(handle, table)


def note_unknown(handle: SessionHandle, sql: str) -> None:
    """Note that a query which the parser does not understand may read the node's own table.

    Args:
        handle: the node's session.
        sql: the query, or the statement that defines the view, before it runs.
    """
    relation = _own_relation()
    if relation is not None and reads(sql) is None and _mentions(sql, relation[-1]):
        _note(handle, handle.nodes.read_as(*relation))


def note_own_table(handle: SessionHandle) -> None:
    """Note that arbitrary code, such as Python, may read the table of this thread's node.

    Args:
        handle: the node's session.
    """
    if (relation := _own_relation()) is not None:
        _note(handle, handle.nodes.read_as(*relation))


def read_check(
    handle: SessionHandle, sql: str, target: QualifiedName, verb: str = "insert"
) -> ReadCheck:
    """Return what a write must check: what its statement reads, and what the node has queried.

    Args:
        handle: the node's session.
        sql: the statement.
        target: the table that it changes.
        verb: of the statement.

    Raises:
        TableChanged: the node has queried a version of the table that is not there any more.
    """
    queried = NOTHING
    if verb in COMPUTING_VERBS:
        # Rows of an earlier query are older.
        own = handle.own_reads.read_set
        for read_set in (own, *handle.nodes.queried_by_ephemeral()):
            queried |= read_set.only(n for n in read_set.versions if _are_same(n, target))
        queried = replace(queried, written=own.written)
    read_set = handle.read_set(sql)
    if reads(sql) is None:
        # A statement that writes names its target once more. A build stages it by another name.
        times, versions = 2 if classify(sql).writes else 1, {target, without_build(target)}
        if any(_mentions(sql, name[-1], times) for name in versions):
            read_set |= handle.read_set_of(Reads(frozenset(versions)))
    check = ReadCheck(handle.catalogs, target, read_set, queried)
    check.check_queried()
    return check


def _own_relation() -> tuple[str, str, str] | None:
    """Return catalog, namespace and published identifier of the table of this thread's node."""
    relation = (get_node_info() or {}).get("node_relation") or {}
    parts = [str(relation.get(key) or "") for key in ("database", "schema", "alias")]
    return (parts[0], parts[1], parts[2]) if all(parts) else None


def _note(handle: SessionHandle, table: NameParts) -> None:
    handle.own_reads.note(handle.read_set_of(Reads(frozenset({table}))))


def _reads_current(read_set: ReadSet, table: QualifiedName) -> bool:
    """Return whether the current rows of a table were read, published or staged."""
    return any(
        _are_same(name, table) and None in read_set.as_of.get(name, CURRENT)
        for name in read_set.versions
    )


def _are_same(left: QualifiedName, right: QualifiedName) -> bool:
    """Return whether names are those of one table, published or staged."""
    return _lower(without_build(left)) == _lower(without_build(right))


def _lower(name: QualifiedName) -> NameParts:
    return tuple(part.lower() for part in name)


def _mentions(sql: str, name: str, times: int = 1) -> bool:
    """Return whether a statement has a name at least so many times, comments aside."""
    try:
        tokens = Spark().tokenize(sql)
    except TokenError:
        return True
    name = name.lower()
    found = sum(
        name == token.text.lower() or (token.token_type in TEXTS and name in token.text.lower())
        for token in tokens
    )
    return found >= times
