"""Classifies SQL statements by their first tokens: verb and changed relation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot.dialects import Spark
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType

from dbt.adapters.iceberg_stream.sql.branches import split_branch

# Words between the verb and the relation's name.
FILLERS = {
    "into", "overwrite", "from", "table", "view", "or", "replace", "if", "not", "exists", "only",
}  # fmt: skip
WRITE_VERBS = {"insert", "merge", "update", "delete", "truncate"}
MAIN_VERBS = WRITE_VERBS | {"select"}
SCHEMA_EVOLUTION = ["with", "schema", "evolution"]
QUOTED = {TokenType.STRING, TokenType.IDENTIFIER}
# Statements that give rows and are no queries.
ROW_COMMANDS = {"call", "show", "describe", "desc", "explain"}
DEFINITION_VERBS = {"create", "replace", "drop", "alter"}
# A statement that replaces a table without any clause for its layout or properties, up to `as`.
PLAIN_REPLACEMENT = re.compile(
    r"(?is)\A(?:\s|/\*.*?\*/|--[^\n]*\n)*create\s+or\s+replace\s+table\s+"
    r"(?:`[^`]+`|\w+)(?:\.(?:`[^`]+`|\w+))*\s+using\s+iceberg\s+as\s"
)


@dataclass(frozen=True)
class Statement:
    """A classified statement.

    Attributes:
        verb: first keyword, lower case, e.g. `merge`, `create`, `select`.
        target: name parts of the relation it changes, None if it changes none.
        branch: the branch of the table that it changes; None for main.
        on_view: whether it defines a view.
        replaces: whether it replaces an existing relation.
        defines_function: whether it changes the session's functions.
    """

    verb: str
    target: tuple[str, ...] | None = None
    on_view: bool = False
    replaces: bool = False
    defines_function: bool = False
    branch: str | None = None

    @property
    def writes(self) -> bool:
        """Return whether it changes a relation."""
        return self.target is not None


def classify(sql: str) -> Statement:
    """Classify a statement.

    Args:
        sql: the statement.

    Returns:
        Its verb and the relation that it changes; the verb `unknown` for invalid SQL.
    """
    try:
        tokens = Spark().tokenize(sql)
    except TokenError:
        return Statement("unknown")
    start = _main_verb(tokens)
    if start is None:
        return Statement("unknown")
    verb = tokens[start].text.lower()
    words = [t.text.lower() for t in tokens[start : start + 4]]
    if verb in WRITE_VERBS or (verb in DEFINITION_VERBS and _defines_relation(words)):
        on_view = verb in DEFINITION_VERBS and "view" in words
        replaces = verb in DEFINITION_VERBS and "replace" in words
        target, branch = split_branch(_name(tokens, start + 1))
        return Statement(verb, target or None, on_view, replaces, branch=branch)
    # `create or replace temporary function`
    function = verb in DEFINITION_VERBS and "function" in [t.text.lower() for t in tokens[:5]]
    return Statement(verb, defines_function=function)


def replacing_query(sql: str) -> str | None:
    """Return the query of a `create or replace table … using iceberg as`.

    Args:
        sql: one statement.

    Returns:
        The query, after as many blanks as it has text before it in the statement: errors name the
        same line and position. None for other statements, and if another clause describes the
        table.
    """
    replacement = PLAIN_REPLACEMENT.match(sql)
    if replacement is None:
        return None
    return re.sub(r"[^\n]", " ", replacement[0]) + sql[replacement.end() :]


def called_names(sql: str) -> list[tuple[str, ...]]:
    """Return the parts of each text in calls of procedures, any of which may be a table's name.

    Args:
        sql: one or more statements.
    """
    calls = [statement for statement in split(sql) if classify(statement).verb == "call"]
    # sqlglot takes all that follows `call` as one token.
    arguments = [statement[Spark().tokenize(statement)[0].end + 1 :] for statement in calls]
    return [
        tuple(part.strip("`") for part in token.text.split("."))
        for text in arguments
        for token in Spark().tokenize(text)
        if token.token_type == TokenType.STRING
    ]


def dropped_namespace(sql: str) -> tuple[str, ...] | None:
    """Return the parts of the name in a `drop schema … cascade`; None for other statements.

    Args:
        sql: the statement.
    """
    words = [t.text for t in Spark().tokenize(sql)]
    lower = [word.lower() for word in words]
    if lower[:1] != ["drop"] or lower[-1:] != ["cascade"]:
        return None
    if lower[1] not in ("schema", "namespace", "database"):
        return None
    start = 4 if lower[2:4] == ["if", "exists"] else 2
    return tuple(word for word in words[start:-1] if word != ".")


def _main_verb(tokens: list[Token]) -> int | None:
    """Return the index of the verb; after `with …`, the first verb outside parentheses."""
    if not tokens:
        return None
    if tokens[0].text.lower() not in ("with", "from"):
        return 0
    depth = 0
    for index, token in enumerate(tokens):
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        elif token.token_type == TokenType.R_PAREN:
            depth -= 1
        elif depth == 0 and token.text.lower() in MAIN_VERBS and token.token_type not in QUOTED:
            return index
    return 0


def _defines_relation(words: list[str]) -> bool:
    if "temporary" in words or "temp" in words or "global" in words:
        return False
    return "table" in words or "view" in words


def with_target(sql: str, target: str) -> str:
    """Return a statement that writes to another relation.

    Args:
        sql: a statement with a target.
        target: the relation, as SQL.
    """
    tokens = Spark().tokenize(sql)
    parts = _name_tokens(tokens, (_main_verb(tokens) or 0) + 1)
    return f"{sql[: parts[0].start]}{target}{sql[parts[-1].end + 1 :]}"


def _name(tokens: list[Token], index: int) -> tuple[str, ...]:
    return tuple(token.text for token in _name_tokens(tokens, index))


def _name_tokens(tokens: list[Token], index: int) -> list[Token]:
    if [token.text.lower() for token in tokens[index : index + 3]] == SCHEMA_EVOLUTION:
        index += 3
    while index < len(tokens) and tokens[index].text.lower() in FILLERS:
        if tokens[index].token_type == TokenType.IDENTIFIER:
            break
        index += 1
    parts: list[Token] = []
    while index < len(tokens):
        parts.append(tokens[index])
        if index + 2 >= len(tokens) or tokens[index + 1].token_type != TokenType.DOT:
            break
        index += 2
    return parts


def split(sql: str) -> list[str]:
    """Split a text into statements, except at semicolons in strings and comments.

    Args:
        sql: the text.
    """
    try:
        tokens = Spark().tokenize(sql)
    except TokenError:
        return [sql]
    ends = [t.start for t in tokens if t.token_type == TokenType.SEMICOLON]
    if not ends:
        return [sql]
    starts = [0, *(end + 1 for end in ends)]
    parts = [sql[start:end].strip() for start, end in zip(starts, [*ends, len(sql)], strict=True)]
    return [part for part in parts if part and Spark().tokenize(part)]
