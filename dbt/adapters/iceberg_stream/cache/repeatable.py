"""Whether a query gives the same rows as long as its tables are the same, and its normal form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sqlglot.dialects import Spark
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType

# Functions whose value changes from call to call, clauses that choose rows by chance or from a
# moment in a table's past, and words that stand for moments ("Special Values" of Spark's types).
CHANGING = {
    "current_catalog", "current_database", "current_date", "current_schema", "current_time",
    "current_timestamp", "current_user", "curdate", "input_file_block_length",
    "input_file_block_start", "input_file_name", "java_method", "localtimestamp",
    "monotonically_increasing_id", "now", "of", "rand", "randn", "random", "randstr", "reflect",
    "sample", "session_user", "shuffle", "spark_partition_id", "tablesample", "today", "tomorrow",
    "try_reflect", "uniform", "unix_timestamp", "user", "uuid", "yesterday",
}  # fmt: skip
# Spark's functions that its Python client has no function for.
MORE_FUNCTIONS = {"if", "cast", "try_cast"}
NAMES = {TokenType.VAR, TokenType.IDENTIFIER}


def normal_form(sql: str) -> list[list[str]] | None:
    """The tokens of a query, without comments and space.

    None if something beside its tables may decide what it gives. In doubt it may.
    """
    try:
        tokens: list[Token] = Spark().tokenize(sql)
    except TokenError:
        return None
    if any(_changes(token) for token in tokens) or _calls_unknown(tokens):
        return None
    return [[token.token_type.name, token.text] for token in tokens]


def _changes(token: Token) -> bool:
    # Of a string, the first word: `timestamp 'now UTC'`.
    words = token.text.lower().split(maxsplit=1)
    return bool(words) and words[0] in CHANGING


def _calls_unknown(tokens: Sequence[Token]) -> bool:
    """Whether a name before a parenthesis is no function of Spark: it may be the user's own."""
    pairs = zip(tokens, tokens[1:], strict=False)
    called = (t for t, after in pairs if after.token_type == TokenType.L_PAREN)
    return any(t.token_type in NAMES and t.text.lower() not in _functions() for t in called)


@cache
def _functions() -> frozenset[str]:
    import pyspark.sql.functions as functions

    return frozenset(name.lower() for name in dir(functions)) | MORE_FUNCTIONS
