"""The drawing of the lineage."""

from __future__ import annotations

from dbt.adapters.iceberg_stream.report.lineage import MAX_NODES, draw
from dbt.adapters.iceberg_stream.report.project import Node


def nodes(**parents: str) -> dict[str, Node]:
    return {name: Node(name, name, "table", ("s", name), tuple(p)) for name, p in parents.items()}


def test_each_node_is_to_the_right_of_what_it_reads() -> None:
    drawing = draw(nodes(a="", b="a", c="ab", d="x"))
    assert drawing is not None
    columns = {box.node.name: box.x for box in drawing.boxes}
    assert columns["a"] < columns["b"] < columns["c"]
    assert columns["d"] == columns["a"]
    assert len(drawing.edges) == 3
    assert all(box.x + 170 < drawing.width for box in drawing.boxes)
    assert all(box.y > 0 and box.y + 40 < drawing.height for box in drawing.boxes)


def test_boxes_do_not_overlap() -> None:
    drawing = draw(nodes(a="", b="", c="", d="abc", e="a", f="de"))
    assert drawing is not None
    places = [(box.x, box.y) for box in drawing.boxes]
    assert all(
        abs(one[0] - other[0]) > 170 or abs(one[1] - other[1]) > 40
        for one in places
        for other in places
        if one is not other
    )


def test_edges_do_not_cross_without_need() -> None:
    drawing = draw(nodes(a="", b="", c="", x="c", y="b", z="a"))
    assert drawing is not None
    heights = {box.node.name: box.y for box in drawing.boxes}
    assert (heights["a"], heights["b"], heights["c"]) == (heights["z"], heights["y"], heights["x"])


def test_nothing_to_draw() -> None:
    assert draw({}) is None
    assert draw(nodes(a="", b="")) is None
    # dbt refuses circles, but a manifest can be edited.
    assert draw(nodes(a="b", b="a")) is None
    many = {f"n{n}": Node(f"n{n}", "n", "table", ("s", "n"), ("n0",)) for n in range(1, MAX_NODES)}
    assert draw({**many, **nodes(n0="")}) is not None
    assert draw({**many, **nodes(n0="", one_more="")}) is None
