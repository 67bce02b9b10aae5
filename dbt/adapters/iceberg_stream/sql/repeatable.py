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

# Functions whose value changes from call to call or with the session.
CALLS = {
    "aes_encrypt", "current_timezone", "curdate", "input_file_block_length",
    "input_file_block_start", "input_file_name", "java_method", "monotonically_increasing_id",
    "now", "rand", "randn", "random", "randstr", "reflect", "shuffle", "spark_partition_id",
    "try_reflect", "uniform", "unix_timestamp", "uuid",
}  # fmt: skip
# Those that need no parentheses, and words of clauses that sample rows or read a table at a time.
WORDS = {
    "current_catalog", "current_database", "current_date", "current_schema", "current_time",
    "current_timestamp", "current_user", "localtime", "localtimestamp", "of", "sample",
    "session_user", "tablesample", "user",
}  # fmt: skip
NONDETERMINISTIC = CALLS | WORDS
# Iceberg's metadata columns: a compaction moves rows, and changes none.
METADATA_COLUMNS = {
    "_deleted", "_file", "_last_updated_sequence_number", "_partition", "_pos", "_row_id",
    "_spec_id",
}  # fmt: skip
# Follows the expression of a function of the project whose value changes from call to call. As a
# comment it stays in the definitions of views.
VOLATILE_MARK = " /* non-deterministic */"
# Strings that Spark casts to the current time or date, with or without a time zone ("Special
# Values" of its types).
MOMENT = re.compile(r"\s*(now|today|tomorrow|yesterday)\b")
# Functions of Spark that its Python client does not export.
MORE_FUNCTIONS = {
    "any", "cast", "charindex", "chr", "decimal", "if", "len", "luhn_check", "mod",
    "percentile_cont", "percentile_disc", "timestampadd", "timestampdiff", "try_cast",
}  # fmt: skip
# Words of clauses before a parenthesis: `within group (…)`, `grouping sets (…)`.
CLAUSES = {"group", "sets"}
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
        before, after = tokens[index - 1 : index], tokens[index + 1 : index + 2]
        if after and after[0].token_type == TokenType.L_PAREN:
            if text in CALLS | WORDS or text.startswith("kll_"):
                return token
            continue
        is_column = bool(before) and before[0].token_type == TokenType.DOT
        if text in WORDS and not is_column and not _is_version(tokens[index - 2 : index + 2]):
            return token
    return None


def _user_code(tokens: list[Token]) -> Token | None:
    """Return the call of a program, or of a function that may be user-defined; None if none is."""
    for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False):
        if token.text.lower() == "using" and after.token_type in TEXTS:
            return token  # `transform(…) using 'program'`
        if after.token_type != TokenType.L_PAREN:
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
