"""Decides whether a query returns the same rows while its tables do not change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

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
# Functions of Spark that are missing in its Python client.
MORE_FUNCTIONS = {"if", "cast", "try_cast"}
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
    # Spark replaces `${…}` by settings before it parses.
    if "${" in sql or VOLATILE_MARK in sql:
        return None
    others = [t for i, t in enumerate(tokens) if not _is_version(tokens[i - 2 : i + 2])]
    if any(map(_is_nondeterministic, others)) or _calls_user_code(tokens):
        return None
    return [sql[token.start : token.end + 1] for token in tokens]


def _is_version(tokens: Sequence[Token]) -> bool:
    """Return whether tokens are `version as of` and a version, which read sets contain."""
    words = [token.text.lower() for token in tokens[:3]]
    return words == ["version", "as", "of"] and tokens[-1].token_type in VERSIONS


def _is_nondeterministic(token: Token) -> bool:
    text = token.text.lower()
    return text in NONDETERMINISTIC or text.startswith("kll_") or MOMENT.match(text) is not None


def _calls_user_code(tokens: Sequence[Token]) -> bool:
    """Return whether the query calls a program, or a function that may be user-defined."""
    for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False):
        if token.text.lower() == "using" and after.token_type in TEXTS:
            return True  # `transform(…) using 'program'`
        if after.token_type != TokenType.L_PAREN:
            continue
        qualified = before is not None and before.token_type == TokenType.DOT
        if qualified or (token.token_type in NAMES and token.text.lower() not in _functions()):
            return True
    return False


@cache
def _functions() -> frozenset[str]:
    import pyspark.sql.functions as functions

    return frozenset(name.lower() for name in dir(functions)) | MORE_FUNCTIONS
