"""The stream of one table."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream


def test_a_route_stays_when_the_columns_change() -> None:
    query = StreamQuery("select 1", "v", "t", ["id"], StreamOptions("s", ("id",)))

    def writer(query: StreamQuery) -> Any:
        progress = SimpleNamespace(frontier=None)
        sink = SimpleNamespace(index=None, progress=progress, is_staged=False)
        return SimpleNamespace(
            query=query, sink=sink, close=lambda: None, options=query.options, reads_target=False
        )

    table = TableStream(
        writer(replace(query, where="kind = 'a'", deletes_others=True)),
        StreamStatus("t"),
        lambda *_: None,
        reopen=lambda *_: (writer(query), "2"),
    )
    table.follow_schema({"n": 1})
    assert (table.writer.query.where, table.writer.query.deletes_others) == ("kind = 'a'", True)
