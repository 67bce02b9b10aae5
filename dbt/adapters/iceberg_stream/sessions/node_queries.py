"""What a model's queries have read of its own table, from which its rows may be computed.

`run_query('select max(id) from ' ~ this)` runs before the model's statement, whose text does not
say that its rows depend on the table.
"""

from __future__ import annotations

from dbt_common.events.contextvars import get_node_info

from dbt.adapters.iceberg_stream.builds.names import without_build
from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
from dbt.adapters.iceberg_stream.sessions.session_handle import SessionHandle
from dbt.adapters.iceberg_stream.tables.commit.read_check import ReadCheck


def note_query(handle: SessionHandle, sql: str) -> None:
    """Note what a query reads of the table of the node that runs it, before it runs.

    Queries of the node's materialization do not count: they compute no rows.

    Args:
        handle: the node's session.
        sql: the query.
    """
    node = get_node_info() or {}
    if not handle.is_materializing(str(node.get("unique_id"))):
        note_own_reads(handle, sql)


def note_own_reads(handle: SessionHandle, sql: str) -> None:
    """Note what a query reads of the table of the node that runs it.

    Args:
        handle: the node's session.
        sql: the query.
    """
    relation = (get_node_info() or {}).get("node_relation") or {}
    alias = str(relation.get("alias") or "").lower()
    if not alias or alias not in sql.lower() or (read_set := handle.read_set(sql)) is None:
        return
    own = (str(relation.get("schema")).lower(), alias)
    names = [
        name
        for name in read_set.versions
        if tuple(part.lower() for part in without_build(name)[-2:]) == own
    ]
    # The first query decides: its rows are the oldest ones.
    handle.queried = read_set.only(names) | handle.queried


def read_check(handle: SessionHandle, sql: str, target: QualifiedName) -> ReadCheck:
    """Return what a write must check: what its statement reads, and what the model has queried.

    Args:
        handle: the node's session.
        sql: the statement.
        target: the table that it changes.

    Raises:
        TableChanged: the model has queried a version of the table that is not there any more.
    """
    check = ReadCheck(handle.catalogs, target, handle.read_set(sql), handle.queried)
    check.check_queried()
    return check
