"""The lineage of a project as a drawing: nodes in columns, each to the right of what it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean

import networkx as nx

from dbt.adapters.iceberg_stream.report.project import Node

# More nodes are a tangle that nobody reads.
MAX_NODES = 80
WIDTH, HEIGHT = 170, 40
COLUMN_GAP, ROW_GAP = 50, 14
# Passes that order each column by its neighbours; later ones hardly change anything.
SWEEPS = 4


@dataclass(frozen=True)
class Box:
    """A node of the drawing, with its top left corner."""

    node: Node
    x: int
    y: int


@dataclass(frozen=True)
class Drawing:
    """The boxes, the edges between them as paths of SVG, and the size of all."""

    boxes: tuple[Box, ...]
    edges: tuple[str, ...]
    width: int
    height: int


def draw(nodes: Mapping[str, Node]) -> Drawing | None:
    """Place nodes in columns and order each column so that few edges cross.

    Args:
        nodes: by unique id; parents that are not among them are left out.

    Returns:
        The drawing; None if there is nothing to draw, or too much.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(nodes))
    graph.add_edges_from(
        (parent, node.unique_id)
        for node in nodes.values()
        for parent in node.parents
        if parent in nodes
    )
    is_drawn = 0 < len(nodes) <= MAX_NODES and nx.is_directed_acyclic_graph(graph)
    if not is_drawn or not graph.edges:
        return None
    columns = [sorted(column) for column in nx.topological_generations(graph)]
    _untangle(graph, columns)
    tallest = max(map(len, columns))
    boxes = {
        unique_id: Box(
            nodes[unique_id],
            x=1 + number * (WIDTH + COLUMN_GAP),
            # Shorter columns are centred.
            y=1 + (2 * place + tallest - len(column)) * (HEIGHT + ROW_GAP) // 2,
        )
        for number, column in enumerate(columns)
        for place, unique_id in enumerate(column)
    }
    return Drawing(
        boxes=tuple(boxes.values()),
        edges=tuple(_path(boxes[parent], boxes[child]) for parent, child in graph.edges),
        width=2 + len(columns) * (WIDTH + COLUMN_GAP) - COLUMN_GAP,
        height=2 + tallest * (HEIGHT + ROW_GAP) - ROW_GAP,
    )


def _untangle(graph: nx.DiGraph, columns: list[list[str]]) -> None:
    """Order each column by the mean place of its neighbours, to the right and back."""
    for sweep in range(SWEEPS):
        neighbours = graph.predecessors if sweep % 2 == 0 else graph.successors
        places = _places(columns)
        for column in columns if sweep % 2 == 0 else reversed(columns):
            means = {one: _mean(neighbours(one), places, places[one]) for one in column}
            column.sort(key=means.__getitem__)
            places |= _places([column])


def _places(columns: Iterable[list[str]]) -> dict[str, float]:
    """Return each node's place in its column, as a share of the column's length."""
    return {one: (n + 0.5) / len(column) for column in columns for n, one in enumerate(column)}


def _mean(neighbours: Iterable[str], places: Mapping[str, float], default: float) -> float:
    values = [places[one] for one in neighbours]
    return mean(values) if values else default


def _path(parent: Box, child: Box) -> str:
    x1, y1 = parent.x + WIDTH, parent.y + HEIGHT // 2
    x2, y2 = child.x, child.y + HEIGHT // 2
    bend = COLUMN_GAP // 2
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
