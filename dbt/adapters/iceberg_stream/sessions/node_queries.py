"""What a model's queries have read of its own table, from which its rows may be computed.

`run_query('select max(id) from ' ~ this)` runs before the model's statement, whose text does not
say that its rows depend on the table. The same holds for a hook.
"""

from __future__ import annotations

from dataclasses import replace

from dbt_common.events.contextvars import get_node_info
from sqlglot.dialects import Spark
from sqlglot.errors import TokenError

from dbt.adapters.iceberg_stream.builds.names import without_build
from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
from dbt.adapters.iceberg_stream.sessions.session_handle import SessionHandle
from dbt.adapters.iceberg_stream.sql.reads import NameParts, Reads
from dbt.adapters.iceberg_stream.tables.commit.read_check import NOTHING, ReadCheck

# Statements whose rows, or whose variables, later statements may be computed from.
READING_VERBS = {
    *("select", "with", "values", "from", "table", "(", "map", "reduce"),
    *("set", "declare", "execute", "begin"),
}
# Statements whose rows are computed. They depend on what was read before.
COMPUTING_VERBS = {"insert", "merge", "update", "delete"}
# What their statements write depends on no earlier version.
REPLACING = {"table", "view", "ephemeral"}


def note_query(handle: SessionHandle, sql: str, verb: str) -> None:
    """Note what a statement reads of the table of the node that runs it, before it runs.

    Statements of the node's materialization do not count: they compute no rows.

    Args:
        handle: the node's session.
        sql: the statement.
        verb: its first word.
    """
    node = get_node_info() or {}
    if verb not in READING_VERBS or handle.is_materializing(str(node.get("unique_id"))):
        return
    if (relation := _own_relation()) is None:
        return
    mentions = _mentions(sql, relation[-1])
    if node.get("materialized") in REPLACING and not mentions:
        return
    table = handle.read_as(*relation)
    read_set = handle.read_set(sql)
    if read_set is None:
        # A table of metadata, `identifier(…)`, or what is not understood.
        if mentions:
            _note(handle, table)
        return
    own = _lower(handle.catalogs.find_qualified(relation) or ())
    names = [name for name in read_set.versions if _lower(without_build(name)) == own]
    handle.note_queried(read_set.only(names))


def note_own_table(handle: SessionHandle) -> None:
    """Note that code, which is not understood, may read the table of this thread's node.

    Args:
        handle: the node's session.
    """
    if (relation := _own_relation()) is not None:
        _note(handle, handle.read_as(*relation))


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
    written = frozenset(handle.written)
    queried = replace(handle.queried, written=written) if verb in COMPUTING_VERBS else NOTHING
    check = ReadCheck(handle.catalogs, target, handle.read_set(sql), queried)
    check.check_queried()
    return check


def _own_relation() -> tuple[str, str, str] | None:
    """Return catalog, namespace and published identifier of the table of this thread's node."""
    relation = (get_node_info() or {}).get("node_relation") or {}
    parts = [str(relation.get(key) or "") for key in ("database", "schema", "alias")]
    return (parts[0], parts[1], parts[2]) if all(parts) else None


def _note(handle: SessionHandle, table: NameParts) -> None:
    read_set = handle.read_set_of(Reads(frozenset({table})))
    if read_set is not None:
        handle.note_queried(read_set)


def _lower(name: NameParts) -> NameParts:
    return tuple(part.lower() for part in name)


def _mentions(sql: str, name: str) -> bool:
    """Return whether a name is in a statement, comments aside."""
    try:
        tokens = Spark().tokenize(sql)
    except TokenError:
        return True
    return any(name.lower() in token.text.lower() for token in tokens)
