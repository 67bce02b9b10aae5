"""Checks the statements of the Flight SQL server's callers.

All statements run in the server's process, as its user of the operating system. So only statements
that provably stay within the catalog are allowed; other statements, functions and sources of rows
are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from dbt.adapters.iceberg_stream.catalog.client_properties import code_settings
from dbt.adapters.iceberg_stream.catalog.names import is_path_part
from dbt.adapters.iceberg_stream.flight.functions import (
    FUNCTIONS,
    ICEBERG_FUNCTIONS,
    KEYWORDS,
)
from dbt.adapters.iceberg_stream.flight.spark_text import (
    STRINGS,
    NotAllowed,
    SparkToken,
    tokenize,
    without_comments,
)
from dbt.adapters.iceberg_stream.sql.queries import is_common_table

# Settings of callers' sessions: no tables by path, no substitution of environment variables.
SESSION_SETTINGS = {"spark.sql.runSQLOnFiles": "false", "spark.sql.variable.substitute": "false"}

QUERY_ROOTS = (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)
DML_ROOTS = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
# Expressions that may reach outside the catalog or the statement.
REFUSED = (
    exp.Command, exp.QueryTransform, exp.Directory, exp.Into, exp.Parameter, exp.SessionParameter,
    exp.Placeholder, exp.LoadData, exp.LocationProperty, exp.TemporaryProperty, exp.Clone,
)  # fmt: skip
TABLE_PARTS = {"this", "db", "catalog", "alias", "joins", "laterals", "pivots", "sample", "version"}
CREATE_PARTS = {"this", "with_", "kind", "replace", "exists", "expression", "properties"}
CREATE_PROPERTIES = (exp.FileFormatProperty, exp.PartitionedByProperty, exp.SchemaCommentProperty)
ALTERATIONS = (exp.ColumnDef, exp.Drop, exp.RenameColumn, exp.AlterColumn)
# Spark's own catalogs and schemas.
RESERVED = {"spark_catalog", "system", "session", "builtin", "global_temp"}
# Names of Iceberg's metadata tables, branches, tags and snapshots.
METADATA_TABLES = re.compile(
    r"(all_)?(data_|delete_)?(files|manifests|entries)|snapshots|history|refs|partitions"
    r"|metadata_log_entries|position_deletes|changes|(branch|tag)_\w+"
    r"|(snapshot_id|at_timestamp)_\d+"
)
# Short statements with the name of a table or schema, and whether they return rows.
_SCHEMA, _TABLE = r"(?P<schema>[#\w]+)", r"(?P<table>[#\w]+)"
_KIND = "(namespace|schema|database)"
FORMS = tuple(
    (re.compile(form), is_query)
    for form, is_query in (
        ("show catalogs", True),
        (f"show (namespaces|schemas|databases)( (in|from) {_SCHEMA})?( like <text>)?", True),
        (f"show (tables|views)( (in|from) {_SCHEMA})?( like <text>)?", True),
        (f"show (columns (in|from)|tblproperties|create table) {_TABLE}", True),
        (f"desc(ribe)? {_KIND} (extended )?{_SCHEMA}", True),
        (f"desc(ribe)? (table )?((extended|formatted) )?{_TABLE}", True),
        (f"create {_KIND} (if not exists )?{_SCHEMA}( comment <text>)?", False),
        (f"drop {_KIND} (if exists )?{_SCHEMA}( cascade| restrict)?", False),
        (f"drop (table|view) (if exists )?{_TABLE}( purge)?", False),
        (f"(truncate|refresh) table {_TABLE}", False),
    )
)
DEEPEST_VIEW = 20


class Catalog(Protocol):
    """The part of the caller's catalog that the checks use."""

    name: str

    def namespace_exists(self, namespace: str) -> bool:
        """Return whether a namespace exists."""

    def metadata(self, name: tuple[str, str]) -> Mapping[str, Any] | None:
        """Return the current metadata of a table or view; None if there is neither."""


@dataclass(frozen=True)
class Allowed:
    """A statement that may run.

    Attributes:
        sql: the statement, without comments and hints.
        is_query: whether it returns rows and changes nothing.
    """

    sql: str
    is_query: bool


def check_statement(sql: str, catalog: Catalog) -> Allowed:
    """Check a caller's statement.

    Args:
        sql: the statement.
        catalog: the catalog, with the caller's token.

    Returns:
        The statement, without comments and hints.

    Raises:
        NotAllowed: the statement may reach outside the catalog.
        CatalogError: the catalog refuses to show a relation of the statement.
    """
    text = without_comments(sql)
    tokens = tokenize(text)
    if not tokens:
        raise NotAllowed("The statement is empty.")
    checker = _Checker(catalog)
    first = tokens[0]
    if first.is_word("explain"):
        behind = 2 if tokens[1:] and tokens[1].is_word("extended", "cost", "formatted") else 1
        checker.check_query(_text_from(text, tokens, behind))
        return Allowed(text, True)
    if first.is_word("describe", "desc") and _begins_query(tokens[1:]):
        checker.check_query(_text_from(text, tokens, 2 if tokens[1].is_word("query") else 1))
        return Allowed(text, True)
    for form, is_query in FORMS:
        if checker.has_form(tokens, form):
            return Allowed(text, is_query)
    return Allowed(text, checker.check_parsed(text, tokens))


def _begins_query(tokens: Sequence[SparkToken]) -> bool:
    return bool(tokens) and tokens[0].is_word("query", "select", "with", "values")


def _text_from(text: str, tokens: Sequence[SparkToken], count: int) -> str:
    if len(tokens) <= count:
        raise NotAllowed(f"The statement ends too early: `{text}`. Write a query after it.")
    return text[tokens[count].token.start :]


class _Checker:
    def __init__(self, catalog: Catalog, default: str | None = None, depth: int = 0) -> None:
        self._catalog = catalog
        self._default = default
        self._depth = depth

    def has_form(self, tokens: Sequence[SparkToken], form: re.Pattern[str]) -> bool:
        """Return whether a short statement has a form, after a check of its names."""
        names = _dotted_names(tokens)
        pieces = [p[0].name if p[0].is_word(p[0].name) and len(p) == 1 else "#" for p in names]
        pieces = [
            "<text>" if p[0].token.token_type in STRINGS else t
            for p, t in zip(names, pieces, strict=True)
        ]
        text = " ".join(pieces)
        matched = form.fullmatch(text)
        if matched is None:
            return False
        for kind in form.groupindex:
            if matched[kind] is not None:
                parts = names[text[: matched.start(kind)].count(" ")]
                self._check_name([part.token.text for part in parts], kind)
        return True

    def _check_name(self, parts: list[str], kind: str) -> None:
        name, catalog_name = ".".join(parts), self._catalog.name
        if kind == "table":
            self.check_table(parts)
        elif len(parts) > 2 or (len(parts) == 2 and parts[0].lower() != catalog_name.lower()):
            raise NotAllowed(f"`{name}` is not in the catalog `{catalog_name}`.")
        elif parts[-1].lower() in RESERVED or not is_path_part(parts[-1]):
            raise NotAllowed(f"`{name}` is not a schema of the catalog `{catalog_name}`.")

    def check_query(self, sql: str) -> None:
        """Check a query, without its comments."""
        if not self.check_parsed(sql, tokenize(sql)):
            raise NotAllowed("This needs a query: write SELECT … after it.")

    def check_parsed(self, sql: str, tokens: Sequence[SparkToken]) -> bool:
        """Check a query or another statement by its syntax tree; return whether it is a query."""
        if any(word.token.token_type == TokenType.PIPE_GT for word in tokens):
            raise NotAllowed("This server does not read `|>`: write a query with SELECT.")
        try:
            trees = sqlglot.parse(sql, dialect="spark")
        except (SqlglotError, RecursionError) as error:
            raise NotAllowed(
                f"This server does not understand the statement: {str(error).splitlines()[0]}"
            ) from error
        if len(trees) != 1 or trees[0] is None:
            raise NotAllowed("Send one statement at a time.")
        tree = trees[0]
        _check_root(tree)
        for node in tree.walk():
            if isinstance(node, REFUSED):
                raise NotAllowed(
                    f"This server does not run `{_short(node)}`, which may reach beyond the "
                    "catalog."
                )
            if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
                _require_function(str(node.this))
        self._check_words(tokens, tree)
        for table in tree.find_all(exp.Table):
            self._check_relation(table)
        return isinstance(tree, QUERY_ROOTS)

    def _check_words(self, tokens: Sequence[SparkToken], tree: exp.Expr) -> None:
        """Check tokens that sqlglot may parse differently than Spark."""
        table_names = _names_with_columns(tree)
        for index, word in enumerate(tokens):
            before = tokens[index - 1] if index else None
            after = tokens[index + 1] if index + 1 < len(tokens) else None
            if word.is_word("table") and not (index <= 3 and before and _may_precede(before)):
                raise NotAllowed("`TABLE` is not allowed here: write the table's name only.")
            if word.is_word("using") and after and after.token.token_type in STRINGS:
                raise NotAllowed("Scripts are not allowed.")
            if after is None or after.token.token_type != TokenType.L_PAREN:
                continue
            if word.token.token_type in STRINGS:
                raise NotAllowed("A string literal is not a function.")
            if not word.is_name:
                continue
            if before is not None and before.token.token_type == TokenType.DOT:
                self._check_qualified(tokens, index, table_names)
            elif (word.name not in KEYWORDS or word.quoted) and word.name not in table_names:
                _require_function(word.name)

    def _check_qualified(
        self, tokens: Sequence[SparkToken], index: int, table_names: set[str]
    ) -> None:
        name = tokens[index].name
        qualifier = [word.name for word in tokens[max(index - 4, 0) : index]]
        iceberg = [self._catalog.name.lower(), ".", "system", "."]
        if name not in table_names and not (name in ICEBERG_FUNCTIONS and qualifier == iceberg):
            raise NotAllowed(f"The function `{name}` does not exist here.")

    def _check_relation(self, table: exp.Table) -> None:
        parts = table.parts
        extra = {key for key, value in table.args.items() if value} - TABLE_PARTS
        if extra:
            raise NotAllowed(f"`{_short(table)}` has options that are not allowed here.")
        if isinstance(table.this, exp.Func):
            return
        if not all(isinstance(part, exp.Identifier) for part in parts):
            raise NotAllowed(f"`{_short(table)}` is not the name of a table.")
        if len(parts) > 1 or not is_common_table(table):
            self.check_table([part.name for part in parts])

    def check_table(self, parts: list[str]) -> None:
        """Check the name of a table or view, and what a view reads.

        Args:
            parts: the name's parts.

        Raises:
            NotAllowed: the name is not that of a table of the catalog.
        """
        full_name, catalog = ".".join(parts), self._catalog
        if parts[0].lower() == catalog.name.lower() and len(parts) > 2:
            parts = parts[1:]
            if len(parts) > 3 or (len(parts) == 3 and not METADATA_TABLES.fullmatch(parts[2])):
                raise NotAllowed(f"`{full_name}` is not the name of a table.")
        elif len(parts) > 2:
            raise NotAllowed(f"`{full_name}` is not in the catalog `{catalog.name}`.")
        elif len(parts) == 1:
            if self._default is None:
                raise NotAllowed(f"`{full_name}` has no schema: write schema.{full_name}.")
            parts = [self._default, *parts]
        schema, name = parts[0], parts[1]
        if schema.lower() in RESERVED or not (is_path_part(schema) and is_path_part(name)):
            raise NotAllowed(f"`{full_name}` is not the name of a table.")
        if not catalog.namespace_exists(schema):
            raise NotAllowed(f"The catalog `{catalog.name}` has no schema `{schema}`.")
        metadata = catalog.metadata((schema, name))
        if metadata is None:
            return
        if code := code_settings(metadata.get("properties") or {}):
            raise NotAllowed(f"The property `{code[0]}` of `{full_name}` names code to run.")
        if "view-uuid" in metadata:
            self._check_view(full_name, metadata)

    def _check_view(self, name: str, metadata: Mapping[str, Any]) -> None:
        if self._depth >= DEEPEST_VIEW:
            raise NotAllowed(f"The view `{name}` has too many levels of nested views.")
        current = metadata["current-version-id"]
        version = next(v for v in metadata["versions"] if v["version-id"] == current)
        default = version.get("default-catalog") or self._catalog.name
        schema = ".".join(version.get("default-namespace") or []) or None
        for representation in version["representations"]:
            try:
                if default.lower() != self._catalog.name.lower():
                    raise NotAllowed(f"Its default catalog is `{default}`.")
                text = without_comments(representation["sql"])
                _Checker(self._catalog, schema, self._depth + 1).check_query(text)
            except NotAllowed as error:
                raise NotAllowed(f"The view `{name}` is not allowed here. {error}") from error


def _dotted_names(tokens: Sequence[SparkToken]) -> list[list[SparkToken]]:
    """Group the tokens, with the parts of a dotted name in one group."""
    names: list[list[SparkToken]] = []
    joined = False
    for word in tokens:
        if word.token.token_type == TokenType.DOT and names and not joined:
            joined = True
        elif joined:
            names[-1].append(word)
            joined = False
        else:
            names.append([word])
    return names


def _check_root(tree: exp.Expr) -> None:
    if isinstance(tree, QUERY_ROOTS):
        return
    if isinstance(tree, exp.Create) and tree.kind in ("TABLE", "VIEW"):
        _check_creation(tree)
        return
    if isinstance(tree, DML_ROOTS):
        target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
        allowed = isinstance(target, exp.Table)
    else:
        allowed = isinstance(tree, exp.Alter) and tree.args.get("kind") == "TABLE"
        allowed &= all(isinstance(a, ALTERATIONS) for a in tree.args.get("actions") or ())
    if not allowed:
        raise NotAllowed(
            "This server runs queries, SHOW, DESCRIBE and EXPLAIN, and changes of the catalog's "
            "tables, views and schemas. Run other statements with dbt."
        )


def _check_creation(tree: exp.Create) -> None:
    extra = {key for key, value in tree.args.items() if value} - CREATE_PARTS
    if extra or (tree.kind == "VIEW" and tree.expression is None):
        raise NotAllowed(
            f"This server does not run `{_short(tree)}`, which may reach beyond the catalog."
        )
    properties = tree.args.get("properties")
    for property_ in properties.expressions if properties else ():
        iceberg = (
            not isinstance(property_, exp.FileFormatProperty) or property_.name.lower() == "iceberg"
        )
        if not isinstance(property_, CREATE_PROPERTIES) or not iceberg:
            raise NotAllowed(f"This server does not take `{_short(property_)}`. Leave it out.")


def _require_function(name: str) -> None:
    if name.lower() not in FUNCTIONS | ICEBERG_FUNCTIONS:
        raise NotAllowed(
            f"This server does not allow the function `{name}`, which may reach beyond the catalog."
        )


def _may_precede(word: SparkToken) -> bool:
    """Return whether a word may precede `table` at the beginning of a statement."""
    return word.is_word("create", "replace", "alter", "into", "overwrite")


def _names_with_columns(tree: exp.Expr) -> set[str]:
    """Return names with a column list in parentheses: aliases, and targets of writes."""
    names = {a.name.lower() for a in tree.find_all(exp.TableAlias) if a.args.get("columns")}
    for schema in tree.find_all(exp.Schema):
        if isinstance(schema.this, exp.Table):
            names.add(schema.this.name.lower())
    return names - {"reflect", "java_method", "try_reflect", "identifier", "input_file_name"}


def _short(node: exp.Expr) -> str:
    text = node.sql(dialect="spark")
    return text if len(text) <= 60 else f"{text[:57]}…"
