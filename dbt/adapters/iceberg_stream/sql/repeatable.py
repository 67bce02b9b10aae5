"""Decides whether a query returns the same rows while its tables do not change."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from sqlglot.dialects import Spark
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType

# Functions whose value changes from call to call or with the session.
CALLS = {
    "aes_encrypt", "current_timezone", "curdate", "input_file_block_length",
    "input_file_block_start", "input_file_name", "java_method", "monotonically_increasing_id",
    "now", "rand", "randn", "random", "randstr", "reflect", "shuffle", "spark_partition_id",
    "try_reflect", "uniform", "uuid",
}  # fmt: skip
# Those whose value changes only without an argument.
WITHOUT_ARGUMENT = {"unix_timestamp"}
# Those that need no parentheses, and words of clauses that sample rows or read a table at a time.
WORDS = {
    "current_catalog", "current_database", "current_date", "current_schema", "current_time",
    "current_timestamp", "current_user", "localtime", "localtimestamp", "of", "sample",
    "session_user", "tablesample", "user",
}  # fmt: skip
NONDETERMINISTIC = CALLS | WORDS | WITHOUT_ARGUMENT
# Iceberg's metadata columns: a compaction moves rows, and changes none.
METADATA_COLUMNS = {
    "_deleted", "_file", "_last_updated_sequence_number", "_partition", "_pos", "_row_id",
    "_spec_id",
}  # fmt: skip
# Follows the expression of a function of the project whose value changes from call to call. As a
# comment it stays in the definitions of views.
VOLATILE_MARK = " /* non-deterministic */"
# Strings that Spark casts to the current time or date, with or without a time zone ("Special
# Values" of its types), and times without a date, which get the current one.
MOMENT = re.compile(r"\s*((now|today|tomorrow|yesterday)\b|T\d|\d{1,2}:\d)", re.IGNORECASE)
# Functions of Spark that its Python client does not export.
MORE_FUNCTIONS = {
    "any", "cast", "charindex", "chr", "decimal", "if", "len", "luhn_check", "mod",
    "percentile_cont", "percentile_disc", "timestampadd", "timestampdiff", "try_cast",
}  # fmt: skip
# Words of clauses before a parenthesis: `within group (…)`, `grouping sets (…)`.
CLAUSES = {"group", "sets"}
EXPORTS = "functions/__init__.py"
NAMES = {TokenType.VAR, TokenType.IDENTIFIER}
# How a subquery begins.
SUBQUERY = {"select", "with", "values", "from", "table", "("}
TEXTS = {TokenType.STRING, TokenType.RAW_STRING}
VERSIONS = {TokenType.STRING, TokenType.NUMBER}


def normal_form(sql: str) -> list[str] | None:
    """Return the tokens of a query, without comments and white space.

    Args:
        sql: the query.

    Returns:
        The tokens as they are written; None if the rows may depend on more than the tables, the
        session and the current date.
    """
    try:
        tokens: list[Token] = Spark().tokenize(sql)
    except TokenError:
        return None
    if _variable_part(sql, tokens) is not None:
        return None
    return [sql[token.start : token.end + 1] for token in tokens]


def variable_part(sql: str) -> str | None:
    """Return what makes the rows of a query depend on more than its tables; None if nothing does.

    Args:
        sql: the query.
    """
    try:
        return _variable_part(sql, Spark().tokenize(sql))
    except TokenError:
        return "text that is no SQL"


def metadata_column(sql: str) -> str | None:
    """Return a column of a query that may change without its tables' rows; None if none does.

    Args:
        sql: a query that `variable_part` accepts.
    """
    tokens = Spark().tokenize(sql)
    return next((t.text for t in tokens if t.text.lower() in METADATA_COLUMNS), None)


def _variable_part(sql: str, tokens: list[Token]) -> str | None:
    # Spark replaces `${…}` by settings before it parses.
    if "${" in sql:
        return "${"
    if VOLATILE_MARK in sql:
        return "a function whose value changes from call to call"
    token = _nondeterministic(tokens) or _user_code(tokens)
    if token is None:
        return None
    return "as of" if token.text.lower() == "of" else token.text


def _is_version(tokens: Sequence[Token]) -> bool:
    """Return whether tokens are `version as of` and a version, which read sets contain."""
    words = [token.text.lower() for token in tokens[:3]]
    return words == ["version", "as", "of"] and tokens[-1].token_type in VERSIONS


def _nondeterministic(tokens: list[Token]) -> Token | None:
    """Return what has another value in each query or session; None if nothing has."""
    for index, token in enumerate(tokens):
        text = token.text.lower()
        if token.token_type in TEXTS:
            if MOMENT.match(text):
                return token
            continue
        if _names_relation(tokens, index):
            continue
        after = [following.token_type for following in tokens[index + 1 : index + 3]]
        if after[:1] == [TokenType.L_PAREN]:
            is_empty = after[1:] == [TokenType.R_PAREN]
            if text in CALLS | WORDS or text.startswith("kll_"):
                return token
            if text in WITHOUT_ARGUMENT and is_empty:
                return token
            continue
        # A column, or the name before it.
        neighbors = [other.token_type for other in tokens[max(index - 1, 0) : index]] + after[:1]
        if text not in WORDS or TokenType.DOT in neighbors:
            continue
        if not _is_version(tokens[index - 2 : index + 2]):
            return token
    return None


def _names_relation(tokens: list[Token], index: int) -> bool:
    """Return whether a token is an alias or the name of a common table expression, and no function.

    A list of columns may follow: `with t (a, b) as (…)`, `(…) t (a, b)`.
    """
    before, after = (_text(tokens, index - 1) if index else ""), _text(tokens, index + 1)
    if before == "as":
        return _text(tokens, index) != "of"
    if before == ")":
        return after == "("
    if before in ("from", "join"):
        name = _text(tokens, index)
        return any(
            _text(tokens, i) == name and _begins_common_table(tokens, i) for i in range(index)
        )
    return _begins_common_table(tokens, index)


def _begins_common_table(tokens: list[Token], index: int) -> bool:
    if index == 0 or _text(tokens, index - 1) not in ("with", "recursive", ","):
        return False
    end = index + 1
    if _text(tokens, end) == "(":
        closing = (i for i in range(end, len(tokens)) if _text(tokens, i) == ")")
        end = next(closing, len(tokens)) + 1
    is_subquery = _text(tokens, end + 2) in SUBQUERY
    return [_text(tokens, end), _text(tokens, end + 1)] == ["as", "("] and is_subquery


def _text(tokens: list[Token], index: int) -> str:
    """Return a token in lower case; empty after the last one, and for a text."""
    if index >= len(tokens) or tokens[index].token_type in TEXTS:
        return ""
    return tokens[index].text.lower()


def _user_code(tokens: list[Token]) -> Token | None:
    """Return the call of a program, or of a function that may be user-defined; None if none is."""
    for index, (token, after) in enumerate(pairwise(tokens)):
        before = tokens[index - 1] if index else None
        if token.text.lower() == "using" and after.token_type in TEXTS:
            return token  # `transform(…) using 'program'`
        if after.token_type != TokenType.L_PAREN or _names_relation(tokens, index):
            continue
        qualified = before is not None and before.token_type == TokenType.DOT
        is_builtin = token.text.lower() in _functions() | CLAUSES
        if qualified or (token.token_type in NAMES and not is_builtin):
            return token
    return None


@cache
def _functions() -> frozenset[str]:
    """Return the names of Spark's functions; importing its client for them takes a second."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).with_name("sql").joinpath(EXPORTS).read_text())
    exports = next(s for s in tree.body if isinstance(s, ast.Assign))
    return frozenset(map(str.lower, ast.literal_eval(exports.value))) | MORE_FUNCTIONS
