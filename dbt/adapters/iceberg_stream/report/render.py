"""Renders the contents of a report as one HTML page, which needs nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dbt.adapters.iceberg_stream.__version__ import version
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets
from dbt.adapters.iceberg_stream.maintenance.advice import Advice, in_bytes
from dbt.adapters.iceberg_stream.report.charts import history_charts
from dbt.adapters.iceberg_stream.report.contents import Contents, Name, Table
from dbt.adapters.iceberg_stream.report.history import Write, utc
from dbt.adapters.iceberg_stream.report.lineage import HEIGHT, MAX_NODES, WIDTH, draw
from dbt.adapters.iceberg_stream.report.project import Node
from dbt.adapters.iceberg_stream.stream.status import StreamStatus

TEMPLATES = Path(__file__).parent / "templates"
# What keeps the page of hundreds of tables small. The page says what it leaves out.
MAX_TEXT = 1_000
MAX_ADVICE, MAX_BUILDS, MAX_RUNS, MAX_CHANGES, MAX_CHARTS = 200, 20, 20, 100, 100
# Writes of all tables; a table has at least and at most so many.
ALL_WRITES, LEAST_WRITES, MOST_WRITES = 5_000, 5, 50
# Characters that a box of the drawing has room for.
BOX_TEXT = 22


@dataclass(frozen=True)
class _TableView:
    """A table as the page shows it.

    Attributes:
        table: the table.
        anchor: id of its part of the page.
        writes: those to show.
        advice: what is worth doing for it.
        charts: empty if the page has too many, or the history is too short.
        reads: the nodes that its node reads.
        read_by: the nodes that read it.
    """

    table: Table
    anchor: str
    writes: Sequence[Write]
    advice: Sequence[Advice]
    charts: Sequence[Markup]
    reads: Sequence[Node]
    read_by: Sequence[Node]


def render(
    contents: Contents, options: Sequence[str] = (), running: Sequence[StreamStatus] = ()
) -> str:
    """Return a report as an HTML page without scripts and without external resources.

    All texts are escaped, shortened, and redacted: addresses lose their passwords and keys.

    Args:
        contents: what the report shows.
        options: that printed commands need to find the same catalog.
        running: status of the streams that run in this process.
    """
    children = _children(contents.nodes)
    views = _views(contents, children)
    return (
        _environment()
        .get_template("report.html")
        .render(
            contents=contents,
            title=_title(contents),
            version=version,
            options=options,
            running=running,
            views=views,
            anchors={view.table.name: view.anchor for view in views},
            # A source in Kafka may have the name of the table that is made of it.
            node_anchors={
                view.table.node.unique_id: view.anchor
                for view in views
                if view.table.node is not None
            },
            advice=contents.advice[:MAX_ADVICE],
            not_examined=sum(table.health is None for table in contents.tables),
            costs=_costs(contents),
            builds=contents.builds[:MAX_BUILDS],
            publications=contents.publications[:MAX_BUILDS],
            runs=contents.runs[:MAX_RUNS],
            max_changes=MAX_CHANGES,
            drawing=draw(contents.nodes),
            drawn_nodes=MAX_NODES,
            children=children,
            shown_writes=_shown_writes(contents),
            without_charts=sum(_has_history(view) and not view.charts for view in views),
            box_width=WIDTH,
            box_height=HEIGHT,
        )
    )


def _title(contents: Contents) -> str:
    if contents.namespaces:
        return ", ".join(contents.namespaces)
    if contents.project is not None and contents.project.name:
        return contents.project.name
    return contents.catalog


def _views(contents: Contents, children: Mapping[str, Sequence[Node]]) -> list[_TableView]:
    advice: dict[Name, list[Advice]] = {}
    for one in contents.advice:
        advice.setdefault(one.table, []).append(one)
    shown = _shown_writes(contents)
    charted = _charted(contents.tables, advice)
    return [
        _TableView(
            table=table,
            anchor=f"table-{number}",
            writes=table.writes[:shown],
            advice=advice.get(table.name, ()),
            charts=history_charts(table.writes) if table.name in charted else (),
            reads=_parents(table.node, contents.nodes),
            read_by=() if table.node is None else children.get(table.node.unique_id, ()),
        )
        for number, table in enumerate(contents.tables, 1)
    ]


def _shown_writes(contents: Contents) -> int:
    share = ALL_WRITES // max(len(contents.tables), 1)
    return min(max(share, LEAST_WRITES), MOST_WRITES)


def _charted(tables: Sequence[Table], advice: Mapping[Name, Sequence[Advice]]) -> set[Name]:
    """Return the tables to draw charts of: first those with advice, then those often written."""
    with_history = [table for table in tables if len(table.writes) > 1]
    with_history.sort(key=lambda table: (table.name not in advice, -len(table.writes), table.name))
    return {table.name for table in with_history[:MAX_CHARTS]}


def _has_history(view: _TableView) -> bool:
    return len(view.table.writes) > 1


def _costs(contents: Contents) -> dict[Name, float]:
    healths = (table.health for table in contents.tables)
    return {health.name: health.cost.seconds for health in healths if health is not None}


def _parents(node: Node | None, nodes: Mapping[str, Node]) -> list[Node]:
    parents = () if node is None else node.parents
    return sorted((nodes[key] for key in parents if key in nodes), key=lambda each: each.name)


def _children(nodes: Mapping[str, Node]) -> dict[str, list[Node]]:
    children: dict[str, list[Node]] = {}
    for node in sorted(nodes.values(), key=lambda each: each.name):
        for parent in dict.fromkeys(node.parents):
            children.setdefault(parent, []).append(node)
    return children


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": _time,
        "iso": _iso,
        "number": _number,
        "size": lambda size: "" if size is None else in_bytes(size),
        "short": _short,
        "dotted": ".".join,
        "shell": shlex.join,
    }
    return environment


def _finalize(value: Any) -> Any:
    """Redact and shorten each text that a template prints; only charts are markup."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = without_secrets(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _time(milliseconds: int | None) -> str:
    at = None if milliseconds is None else utc(milliseconds)
    return "unknown" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _iso(milliseconds: int) -> str:
    at = utc(milliseconds)
    return "" if at is None else at.isoformat(timespec="seconds")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _short(text: str, length: int = BOX_TEXT) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
