"""Nodes in several threads, and the queries of ephemeral models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from dbt.adapters.iceberg_stream.sessions.running_nodes import RunningNodes
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet

READ = ReadSet({("s", "t"): ("u", 1, 0, 5)})


def test_a_thread_has_its_own_node() -> None:
    nodes = RunningNodes()
    nodes.begin_materialization("model.a", [])
    assert nodes.is_materializing("model.a")
    assert not nodes.is_materializing("model.b")
    with ThreadPoolExecutor(1) as other:
        assert not other.submit(nodes.is_materializing, "model.a").result()
    nodes.end()
    assert not nodes.is_materializing("model.a")


def test_queries_of_ephemeral_models_belong_to_those_that_read_them() -> None:
    nodes = RunningNodes()
    with ThreadPoolExecutor(1) as other:
        # dbt compiles it as a node of its own.
        other.submit(nodes.note_ephemeral, "model.eph", READ).result()
    nodes.begin_materialization("model.a", ["model.eph", "model.quiet"])
    assert nodes.queried_by_ephemeral() == [READ]
    nodes.begin_hook()
    assert nodes.queried_by_ephemeral() == []
    assert not nodes.is_materializing("model.a")
    nodes.end_hook("model.a")
    assert nodes.queried_by_ephemeral() == [READ]
    nodes.end()
    nodes.begin_materialization("model.b", [])
    assert nodes.queried_by_ephemeral() == []
    nodes.clear()
    nodes.begin_materialization("model.a", ["model.eph"])
    assert nodes.queried_by_ephemeral() == []
