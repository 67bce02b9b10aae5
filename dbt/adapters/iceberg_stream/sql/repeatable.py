"""Decides whether a query returns the same rows while its tables do not change."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sqlglot.dialects import Spark
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType

# Functions whose value changes from call to call, clauses that sample rows or read a table at a
# time, and words that stand for moments ("Special Values" of Spark's types).
NONDETERMINISTIC = {
    "aes_encrypt", "current_catalog", "current_database", "current_date", "current_schema",
    "current_time", "current_timestamp", "current_user", "curdate", "input_file_block_length",
    "input_file_block_start", "input_file_name", "java_method", "localtimestamp",
    "monotonically_increasing_id", "now", "of", "rand", "randn", "random", "randstr", "reflect",
    "sample", "session_user", "shuffle", "spark_partition_id", "tablesample", "today", "tomorrow",
    "try_reflect", "uniform", "unix_timestamp", "user", "uuid", "yesterday",
}  # fmt: skip
# Follows the expression of a function of the project whose value changes from call to call. As a
# comment it stays in the definitions of views.
VOLATILE_MARK = " /* non-deterministic */"
# Strings that Spark casts to the current time or date, with or without a time zone.
MOMENT = re.compile(r"\s*(now|today|tomorrow|yesterday)\b")
# Functions of Spark that its Python client does not export.
MORE_FUNCTIONS = {"any", "cast", "chr", "decimal", "if", "try_cast"}
EXPORTS = "functions/__init__.py"
NAMES = {TokenType.VAR, TokenType.IDENTIFIER}
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


def _variable_part(sql: str, tokens: list[Token]) -> str | None:
    # Spark replaces `${…}` by settings before it parses.
    if "${" in sql:
        return "${"
    if VOLATILE_MARK in sql:
        return "a function whose value changes from call to call"
    others = (t for i, t in enumerate(tokens) if not _is_version(tokens[i - 2 : i + 2]))
    token = next(filter(_is_nondeterministic, others), None) or _user_code(tokens)
    if token is None:
        return None
    return "as of" if token.text.lower() == "of" else token.text


def _is_version(tokens: Sequence[Token]) -> bool:
    """Return whether tokens are `version as of` and a version, which read sets contain."""
    words = [token.text.lower() for token in tokens[:3]]
    return words == ["version", "as", "of"] and tokens[-1].token_type in VERSIONS


def _is_nondeterministic(token: Token) -> bool:
    text = token.text.lower()
    return text in NONDETERMINISTIC or text.startswith("kll_") or MOMENT.match(text) is not None


def _user_code(tokens: list[Token]) -> Token | None:
    """Return the call of a program, or of a function that may be user-defined; None if none is."""
    for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False):
        if token.text.lower() == "using" and after.token_type in TEXTS:
            return token  # `transform(…) using 'program'`
        if after.token_type != TokenType.L_PAREN:
            continue
        qualified = before is not None and before.token_type == TokenType.DOT
        if qualified or (token.token_type in NAMES and token.text.lower() not in _functions()):
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
