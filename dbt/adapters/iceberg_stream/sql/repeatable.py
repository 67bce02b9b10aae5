"""Whether a query gives the same rows as long as its tables are the same, and its normal form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from sqlglot.dialects import Spark
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType

# Functions whose value changes from call to call, clauses that choose rows by chance or from a
# moment in a table's past, and words that stand for moments ("Special Values" of Spark's types).
CHANGING = {
    "aes_encrypt", "current_catalog", "current_database", "current_date", "current_schema",
    "current_time", "current_timestamp", "current_user", "curdate", "input_file_block_length",
    "input_file_block_start", "input_file_name", "java_method", "localtimestamp",
    "monotonically_increasing_id", "now", "of", "rand", "randn", "random", "randstr", "reflect",
    "sample", "session_user", "shuffle", "spark_partition_id", "tablesample", "today", "tomorrow",
    "try_reflect", "uniform", "unix_timestamp", "user", "uuid", "yesterday",
}  # fmt: skip
# Texts that Spark takes for a moment, with or without a zone behind them.
MOMENT = re.compile(r"\s*(now|today|tomorrow|yesterday)\b")
# Spark's functions that its Python client has no function for.
MORE_FUNCTIONS = {"if", "cast", "try_cast"}
NAMES = {TokenType.VAR, TokenType.IDENTIFIER}
TEXTS = {TokenType.STRING, TokenType.RAW_STRING}


def normal_form(sql: str) -> list[str] | None:
    """The tokens of a query as they are written, without comments and space between them.

    None if something beside its tables, its session and the day may decide what it gives. In doubt
    it may.
    """
    try:
        tokens: list[Token] = Spark().tokenize(sql)
    except TokenError:
        return None
    # `${…}` is replaced by settings before Spark parses.
    if "${" in sql or any(map(_changes, tokens)) or _calls_unknown(tokens):
        return None
    return [sql[token.start : token.end + 1] for token in tokens]


def _changes(token: Token) -> bool:
    text = token.text.lower()
    return text in CHANGING or text.startswith("kll_") or MOMENT.match(text) is not None


def _calls_unknown(tokens: Sequence[Token]) -> bool:
    """Whether something is called that may be the user's own: a function, or a program."""
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
