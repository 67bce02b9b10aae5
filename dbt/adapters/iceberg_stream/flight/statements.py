"""What callers of the Flight SQL server may run: statements on the tables of its catalog.

All callers' statements run in the server's process, as its user of the operating system. So
whatever is not known to stay within the catalog is refused: other statements, functions and places
that rows may come from.
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

from dbt.adapters.iceberg_stream.flight.functions import (
    FUNCTIONS,
    ICEBERG_FUNCTIONS,
    KEYWORDS,
)
from dbt.adapters.iceberg_stream.flight.spark_text import (
    STRINGS,
    NotAllowed,
    Word,
    without_comments,
    words,
)
from dbt.adapters.iceberg_stream.sql.queries import is_common_table

# Of a caller's sessions: no tables by path, and no values of the server's environment and settings.
SESSION_SETTINGS = {"spark.sql.runSQLOnFiles": "false", "spark.sql.variable.substitute": "false"}

QUERY_ROOTS = (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)
DML_ROOTS = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
# What leaves the catalog or the statement, wherever it stands.
REFUSED = (
    exp.Command, exp.QueryTransform, exp.Directory, exp.Into, exp.Parameter, exp.SessionParameter,
    exp.Placeholder, exp.LoadData, exp.LocationProperty, exp.TemporaryProperty, exp.Clone,
)  # fmt: skip
TABLE_PARTS = {"this", "db", "catalog", "alias", "joins", "laterals", "pivots", "sample", "version"}
CREATE_PARTS = {"this", "with_", "kind", "replace", "exists", "expression", "properties"}
CREATE_PROPERTIES = (exp.FileFormatProperty, exp.PartitionedByProperty, exp.SchemaCommentProperty)
ALTERATIONS = (exp.ColumnDef, exp.Drop, exp.RenameColumn, exp.AlterColumn)
# Catalogs and schemas that Spark itself has.
RESERVED = {"spark_catalog", "system", "session", "builtin", "global_temp"}
# What Iceberg calls tables of a table.
PARTS_OF_TABLES = re.compile(
    r"(all_)?(data_|delete_)?(files|manifests|entries)|snapshots|history|refs|partitions"
    r"|metadata_log_entries|position_deletes|changes|(branch|tag)_\w+"
    r"|(snapshot_id|at_timestamp)_\d+"
)
# Statements of a few words: with the name of a table or of a schema, and whether they give rows.
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
    """What is asked of the caller's catalog."""

    name: str

    def namespace_exists(self, namespace: str) -> bool: ...

    def metadata(self, name: tuple[str, str]) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True)
class Allowed:
    """A statement as it is to be run, and whether it gives rows and changes nothing."""

    sql: str
    is_query: bool


def check_statement(sql: str, catalog: Catalog) -> Allowed:
    """A caller's statement without its comments and hints.

    Raises:
        NotAllowed: it is not known to stay within the catalog.
        CatalogError: the catalog refuses to tell what the statement names.
    """
    text = without_comments(sql)
    found = words(text)
    if not found:
        raise NotAllowed("There is no statement.")
    checker = _Checker(catalog)
    first = found[0]
    if first.is_word("explain"):
        behind = 2 if found[1:] and found[1].is_word("extended", "cost", "formatted") else 1
        checker.check_query(_rest(text, found, behind))
        return Allowed(text, True)
    if first.is_word("describe", "desc") and _begins_query(found[1:]):
        checker.check_query(_rest(text, found, 2 if found[1].is_word("query") else 1))
        return Allowed(text, True)
    for form, is_query in FORMS:
        if checker.has_form(found, form):
            return Allowed(text, is_query)
    return Allowed(text, checker.check_parsed(text, found))


def _begins_query(found: Sequence[Word]) -> bool:
    return bool(found) and found[0].is_word("query", "select", "with", "values")


def _rest(text: str, found: Sequence[Word], count: int) -> str:
    if len(found) <= count:
        raise NotAllowed("The statement has no end.")
    return text[found[count].token.start :]


class _Checker:
    def __init__(self, catalog: Catalog, default: str | None = None, depth: int = 0) -> None:
        self._catalog = catalog
        self._default = default
        self._depth = depth

    def has_form(self, found: Sequence[Word], form: re.Pattern[str]) -> bool:
        """Whether a statement of a few words has a form; its name is checked then."""
        names = _dotted_names(found)
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
        place, ours = ".".join(parts), self._catalog.name
        if kind == "table":
            self.check_table(parts)
        elif len(parts) > 2 or (len(parts) == 2 and parts[0].lower() != ours.lower()):
            raise NotAllowed(f"`{place}` is not in the catalog `{ours}`.")
        elif parts[-1].lower() in RESERVED:
            raise NotAllowed(f"`{place}` is no schema of the catalog `{ours}`.")

    def check_query(self, sql: str) -> None:
        """Check a query, without its comments."""
        if not self.check_parsed(sql, words(sql)):
            raise NotAllowed("This must be a query.")

    def check_parsed(self, sql: str, found: Sequence[Word]) -> bool:
        """Check a query or a change by its tree; whether it is a query."""
        if any(word.token.token_type == TokenType.PIPE_GT for word in found):
            raise NotAllowed("`|>` is not allowed here: write a query with SELECT.")
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
                raise NotAllowed(f"`{_short(node)}` is not allowed here.")
            if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
                _require_function(str(node.this))
        self._check_words(found, tree)
        for table in tree.find_all(exp.Table):
            self._check_relation(table)
        return isinstance(tree, QUERY_ROOTS)

    def _check_words(self, found: Sequence[Word], tree: exp.Expression) -> None:
        """Look at what the parser may have taken for something else than Spark does."""
        named = _names_with_columns(tree)
        for index, word in enumerate(found):
            before = found[index - 1] if index else None
            after = found[index + 1] if index + 1 < len(found) else None
            if word.is_word("table") and not (index <= 3 and before and _may_precede(before)):
                raise NotAllowed("`TABLE` is not allowed here: name the table alone.")
            if word.is_word("using") and after and after.token.token_type in STRINGS:
                raise NotAllowed("Scripts are not allowed.")
            if after is None or after.token.token_type != TokenType.L_PAREN:
                continue
            if word.token.token_type in STRINGS:
                raise NotAllowed("A text is not a function.")
            if not word.is_name:
                continue
            if before is not None and before.token.token_type == TokenType.DOT:
                self._check_qualified(found, index, named)
            elif (word.name not in KEYWORDS or word.quoted) and word.name not in named:
                _require_function(word.name)

    def _check_qualified(self, found: Sequence[Word], index: int, named: set[str]) -> None:
        name = found[index].name
        place = [word.name for word in found[max(index - 4, 0) : index]]
        ours = [self._catalog.name.lower(), ".", "system", "."]
        if name not in named and not (name in ICEBERG_FUNCTIONS and place == ours):
            raise NotAllowed(f"There is no function `{name}` here.")

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
        """Check the name of a table or view, and what a view reads."""
        place, catalog = ".".join(parts), self._catalog
        if parts[0].lower() == catalog.name.lower() and len(parts) > 2:
            parts = parts[1:]
            if len(parts) > 3 or (len(parts) == 3 and not PARTS_OF_TABLES.fullmatch(parts[2])):
                raise NotAllowed(f"`{place}` is not the name of a table.")
        elif len(parts) > 2:
            raise NotAllowed(f"`{place}` is not in the catalog `{catalog.name}`.")
        elif len(parts) == 1:
            if self._default is None:
                raise NotAllowed(f"`{place}` has no schema: write schema.{place}.")
            parts = [self._default, *parts]
        schema, name = parts[0], parts[1]
        if schema.lower() in RESERVED or re.search(r"[/\\\x00]", schema + name):
            raise NotAllowed(f"`{place}` is not the name of a table.")
        if not catalog.namespace_exists(schema):
            raise NotAllowed(f"There is no schema `{schema}` in the catalog `{catalog.name}`.")
        metadata = catalog.metadata((schema, name))
        if metadata is not None and "view-uuid" in metadata:
            self._check_view(place, metadata)

    def _check_view(self, place: str, metadata: Mapping[str, Any]) -> None:
        if self._depth >= DEEPEST_VIEW:
            raise NotAllowed(f"The view `{place}` reads too many others.")
        current = metadata["current-version-id"]
        version = next(v for v in metadata["versions"] if v["version-id"] == current)
        default = version.get("default-catalog") or self._catalog.name
        schema = ".".join(version.get("default-namespace") or []) or None
        for shown in version["representations"]:
            try:
                if default.lower() != self._catalog.name.lower():
                    raise NotAllowed(f"It is of the catalog `{default}`.")
                text = without_comments(shown["sql"])
                _Checker(self._catalog, schema, self._depth + 1).check_query(text)
            except NotAllowed as error:
                raise NotAllowed(f"The view `{place}` cannot be read here. {error}") from error


def _dotted_names(found: Sequence[Word]) -> list[list[Word]]:
    """The words, with the parts of a dotted name together."""
    names: list[list[Word]] = []
    joined = False
    for word in found:
        if word.token.token_type == TokenType.DOT and names and not joined:
            joined = True
        elif joined:
            names[-1].append(word)
            joined = False
        else:
            names.append([word])
    return names


def _check_root(tree: exp.Expression) -> None:
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
        allowed &= all(isinstance(each, ALTERATIONS) for each in tree.args.get("actions") or ())
    if not allowed:
        raise NotAllowed(
            "This server runs queries, SHOW, DESCRIBE and EXPLAIN, and changes of the catalog's "
            "tables, views and schemas. Run other statements with dbt."
        )


def _check_creation(tree: exp.Create) -> None:
    extra = {key for key, value in tree.args.items() if value} - CREATE_PARTS
    if extra or (tree.kind == "VIEW" and tree.expression is None):
        raise NotAllowed(f"`{_short(tree)}` is not allowed here.")
    properties = tree.args.get("properties")
    for each in properties.expressions if properties else ():
        iceberg = not isinstance(each, exp.FileFormatProperty) or each.name.lower() == "iceberg"
        if not isinstance(each, CREATE_PROPERTIES) or not iceberg:
            raise NotAllowed(f"`{_short(each)}` is not allowed here.")


def _require_function(name: str) -> None:
    if name.lower() not in FUNCTIONS | ICEBERG_FUNCTIONS:
        raise NotAllowed(f"The function `{name}` is not allowed here.")


def _may_precede(word: Word) -> bool:
    """Whether a word may stand before `table` at the beginning of a statement."""
    return word.is_word("create", "replace", "alter", "into", "overwrite")


def _names_with_columns(tree: exp.Expression) -> set[str]:
    """Names that columns in parentheses follow: of aliases, and of tables that are written."""
    found = {a.name.lower() for a in tree.find_all(exp.TableAlias) if a.args.get("columns")}
    for schema in tree.find_all(exp.Schema):
        if isinstance(schema.this, exp.Table):
            found.add(schema.this.name.lower())
    return found - {"reflect", "java_method", "try_reflect", "identifier", "input_file_name"}


def _short(node: exp.Expression) -> str:
    text = node.sql(dialect="spark")
    return text if len(text) <= 60 else f"{text[:57]}…"
