"""The official suite speaks Postgres: its models and statements in Spark's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import sqlglot
from sqlglot import expressions as exp

TYPES = (
    (r"character varying(\s*\(\s*\d+\s*\))?", "string"),
    (r"timestamp without time zone", "timestamp"),
    (r"timestamp with time zone|timestamptz", "timestamp"),
    (r"double precision|float8", "double"),
    (r"text", "string"),
    (r"int4", "int"),
)
STRING = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
DICT = rf"\{{(?!\{{)(?:{STRING}|[^{{}}\"'])*\}}"
JINJA = re.compile(
    rf"(\{{\{{(?:{STRING}|{DICT}|(?!\}}\}}).)*\}}\}}|\{{%.*?%\}}|\{{#.*?#\}}|'(?:[^']|'')*')",
    re.DOTALL,
)
# Types of a table's columns by lower-case name.
Schema = Callable[[str], dict[str, str]]


def model(text: str) -> str:
    """A model, test or snapshot file; Jinja and string literals stay as they are."""
    parts = JINJA.split(text)
    return "".join(part if index % 2 else _sql(part) for index, part in enumerate(parts))


def statements(text: str, schema: Schema) -> Iterator[str]:
    """Statements that a test runs directly; what is no Postgres is left as it is.

    One at a time: an insert is translated when the table before it has been created.
    """
    try:
        parsed = sqlglot.parse(text.replace("`", '"'), read="postgres")
    except sqlglot.errors.ParseError:
        yield text
        return
    for tree in parsed:
        if tree is not None:
            fill = _fill_default(tree)
            yield _statement(tree, schema).sql("spark")
            if fill is not None:
                yield fill.sql("spark")


def _statement(tree: exp.Expression, schema: Schema) -> exp.Expression:
    """Spark takes no varchar lengths, no keys, and no string for a timestamp."""
    for kind in tree.find_all(exp.DataType):
        if kind.this in (exp.DataType.Type.VARCHAR, exp.DataType.Type.CHAR):
            kind.replace(exp.DataType.build("string"))
    for column in tree.find_all(exp.ColumnDef):
        column.set("constraints", [])
    for cast in tree.find_all(exp.AddConstraint):
        cast.pop()
    if isinstance(tree, exp.Insert):
        _cast_inserted(tree, schema)
    if isinstance(tree, exp.Update):
        types = schema(tree.this.name)
        for assignment in tree.expressions:
            kind = types.get(assignment.this.name.lower())
            if kind:
                assignment.set("expression", exp.cast(assignment.expression, kind, dialect="spark"))
    return tree


def _fill_default(tree: exp.Expression) -> exp.Update | None:
    """Iceberg adds a column without its default: the rows that are there get it by an update."""
    if not isinstance(tree, exp.Alter):
        return None
    for column in tree.find_all(exp.ColumnDef):
        for constraint in column.find_all(exp.DefaultColumnConstraint):
            if not isinstance(constraint.this, exp.Null):
                return exp.update(tree.this.copy(), {column.name: constraint.this.copy()})
    return None


def _cast_inserted(tree: exp.Insert, schema: Schema) -> None:
    target = tree.this
    table = target.this if isinstance(target, exp.Schema) else target
    types = schema(table.name)
    names = (
        [column.name for column in target.expressions]
        if isinstance(target, exp.Schema)
        else list(types)
    )
    source = tree.expression
    rows = source.expressions if isinstance(source, exp.Values) else [source]
    for row in rows:
        if len(row.expressions) == len(names):
            pairs = zip(names, row.expressions, strict=True)
            cells = [_cast(cell.unalias(), types.get(name.lower())) for name, cell in pairs]
            row.set("expressions", cells)


def _cast(cell: exp.Expression, kind: str | None) -> exp.Expression:
    if kind is None or isinstance(cell, exp.Star):
        return cell
    return exp.cast(cell, kind, dialect="spark")


def _sql(text: str) -> str:
    text = re.sub(r'"([^"\n]+)"', r"`\1`", text)
    for pattern, spark in TYPES:
        text = re.sub(rf"(::\s*|\bas\s+)({pattern})\b", rf"\g<1>{spark}", text, flags=re.I)
    return text
