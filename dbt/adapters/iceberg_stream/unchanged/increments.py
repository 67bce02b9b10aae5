"""Whether an increment changes nothing in a table that already has the rows of its model.

A model whose query has not changed may have two queries: for all rows, and for an increment.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import sqlglot
from jinja2 import TemplateSyntaxError, nodes
from jinja2.meta import find_undeclared_variables
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbt.adapters.iceberg_stream.sql.queries import DIALECT

# What a query may get from elsewhere while it is compiled, without getting another value later.
STABLE_NAMES = {
    *("config", "env_var", "is_incremental", "ref", "return", "source", "this", "var"),
}
# A name that is computed may stand for any variable.
BY_LITERAL = {"env_var", "var"}
# Configs with which a merge of rows that a table has already may change it.
CONDITIONS = (
    *("incremental_predicates", "predicates", "matched_condition", "not_matched_condition"),
    *("not_matched_by_source_action", "not_matched_by_source_condition"),
    *("skip_matched_step", "skip_not_matched_step"),
)
COMMENT = re.compile(r"(\s|--[^\n]*(\n|$)|/\*.*?\*/)*", re.DOTALL)
# Clauses with which fewer rows to read do not only make fewer rows to return.
NOT_ROW_BY_ROW = ("distinct", "group", "having", "limit", "offset", "qualify")


def overwrites_by_key(config: Mapping[str, Any], strategy: str) -> bool:
    """Return whether an increment leaves a table as it is that has all its rows already.

    Args:
        config: the model's config.
        strategy: the incremental strategy.
    """
    if any(config.get(option) for option in CONDITIONS):
        return False
    return strategy in ("merge", "delete+insert") and bool(config.get("unique_key"))


def is_repeatable(config: Mapping[str, Any], strategy: str) -> bool:
    """Return whether an increment of the same rows as the last one leaves the table as it is.

    Args:
        config: the model's config.
        strategy: the incremental strategy.
    """
    return strategy == "insert_overwrite" or overwrites_by_key(config, strategy)


def only_restricts(
    code: str, macros: Mapping[str, str], sql: str, own: Collection[tuple[str, ...]]
) -> bool:
    """Return whether an increment's query returns rows of the query for all rows, and no others.

    It is so if the code is the same but for a condition of the outermost `where` that reads the
    model's own table, and if nothing else in the code can change from run to run.

    Args:
        code: the model's code.
        macros: texts of the project's macros that it uses, by id.
        sql: the increment's compiled query.
        own: the names that statements have for the model's own table.
    """
    try:
        template, called = _parse(code), [_parse(text) for text in macros.values()]
        tree = sqlglot.parse_one(sql, dialect=DIALECT)
    except (TemplateSyntaxError, SqlglotError):
        return False
    if not _adds_a_condition(template) or not _reads_own_table_in_where(tree, own):
        return False
    if any(_mentions(each, "is_incremental") for each in called):
        return False
    # Packages and names of macros.
    names = STABLE_NAMES.union(*(unique_id.split(".")[1:] for unique_id in macros))
    return all(_is_stable(each, names) for each in (template, *called))


def _parse(text: str) -> nodes.Template:
    from dbt_common.clients.jinja import get_environment

    return get_environment().parse(text)


def _is_stable(template: nodes.Template, names: Collection[str]) -> bool:
    """Return whether a template renders the same text in each run, but for increments."""
    called = {id(call.node): call for call in template.find_all(nodes.Call)}
    for name in template.find_all(nodes.Name):
        call = called.get(id(name))
        if name.name == "config" and call is None:
            return False
        if name.name in BY_LITERAL and not (
            call and call.args and isinstance(call.args[0], nodes.Const)
        ):
            return False
    # Last, because it replaces constant expressions in the template.
    return not find_undeclared_variables(template) - set(names)


def _adds_a_condition(template: nodes.Template) -> bool:
    """Return whether code differs for an increment only by a condition on the table itself."""
    branches = [
        branch
        for branch in template.find_all(nodes.If)
        if isinstance(branch.test, nodes.Call)
        and isinstance(branch.test.node, nodes.Name)
        and branch.test.node.name == "is_incremental"
    ]
    if _mentions(template, "is_incremental") != 1 or len(branches) != 1:
        return False
    if branches[0].else_ or branches[0].elif_:
        return False
    body = branches[0].body
    in_body = sum(_mentions(node, "this") for node in body)
    if not in_body or in_body != _mentions(template, "this"):
        return False
    first = body[0]
    text = first.nodes[0] if isinstance(first, nodes.Output) else None
    if not isinstance(text, nodes.TemplateData):
        return False
    sql = text.data[COMMENT.match(text.data).end() :]  # type: ignore[union-attr]
    return re.match(r"(where|and)\b", sql, re.IGNORECASE) is not None


def _mentions(node: nodes.Node, name: str) -> int:
    return sum(each.name == name for each in node.find_all(nodes.Name))


def _reads_own_table_in_where(tree: exp.Expr, own: Collection[tuple[str, ...]]) -> bool:
    if not isinstance(tree, exp.Select) or any(tree.args.get(key) for key in NOT_ROW_BY_ROW):
        return False
    if any(value.find(exp.AggFunc, exp.Window) for value in tree.expressions):
        return False
    where = tree.args.get("where")
    # With `or`, a further condition may add rows.
    if where is None or isinstance(where.this, exp.Or):
        return False
    reads = [
        table
        for table in tree.find_all(exp.Table)
        if tuple(part.name for part in table.parts) in own
    ]
    return bool(reads) and all(_is_below(table, where) for table in reads)


def _is_below(node: exp.Expr, ancestor: exp.Expr) -> bool:
    parent = node.parent
    while parent is not None and parent is not ancestor:
        parent = parent.parent
    return parent is ancestor
