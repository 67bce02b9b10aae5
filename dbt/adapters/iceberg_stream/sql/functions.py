"""Replaces the calls of a project's functions in a statement.

Iceberg's extension of Spark cannot create SQL functions with arguments, and no view may use a
function of a session. So a call of a SQL function becomes the function's own expression. A call of
a Python function remains, with all its arguments in the declared types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError, TokenError
from sqlglot.tokens import Token, TokenType

from dbt.adapters.iceberg_stream.sql.dialect import Spark
from dbt.adapters.iceberg_stream.sql.queries import DIALECT
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.repeatable import NONDETERMINISTIC, TEXTS, VOLATILE_MARK
from dbt.adapters.iceberg_stream.sql.statements import split

# Functions of Spark that return another value for each row.
RANDOM = {"rand", "randn", "random", "randstr", "shuffle", "uniform", "uuid"}
AGGREGATE_CLAUSES = {"distinct", "filter", "over"}
OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
Replacement = tuple[int, int, str]


class FunctionError(ValueError):
    """A function or a call of it is wrong; the message says how."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function.

    Attributes:
        name: its name.
        type: its Spark SQL type.
        default: SQL expression of its default; None if it has none.
    """

    name: str
    type: str
    default: str | None = None


@dataclass(frozen=True)
class Expression:
    """The SQL of a function.

    Attributes:
        sql: one expression, without an alias.
        uses: which parameter is used where: start, end and index of the parameter.
        variables: start and end of each mention of a lambda's variable.
        aggregates: whether it calls an aggregate function.
    """

    sql: str
    uses: tuple[tuple[int, int, int], ...]
    variables: tuple[tuple[int, int], ...]
    aggregates: bool


@dataclass(frozen=True)
class Signature:
    """A function, as statements call it.

    Attributes:
        name: its name in statements, without backticks.
        parameters: its parameters.
        returns: its Spark SQL type.
        expression: its SQL; None for a Python function.
        volatile: whether two statements may get different values for the same arguments.
    """

    name: str
    parameters: tuple[Parameter, ...]
    returns: str
    expression: Expression | None
    volatile: bool = False


def parse_expression(sql: str, parameters: Sequence[Parameter]) -> Expression:
    """Parse the SQL of a function.

    Args:
        sql: an expression, or a `select` of one.
        parameters: the function's parameters.

    Raises:
        FunctionError: it is not one expression over the parameters.
    """
    statements = split(sql)
    if len(statements) != 1:
        raise FunctionError(
            f"its SQL must be one expression without `;`, got {len(statements)} statements"
        )
    try:
        if not (tokens := Spark().tokenize(statements[0])):
            raise FunctionError("its SQL is empty: write an expression")
        # Without comments before the expression.
        text = statements[0][tokens[0].start :].strip()
        query = text if re.match(r"(?i)(select|with)\b", text) else f"select {text}"
        tree = sqlglot.parse_one(query, dialect=DIALECT)
    except SqlglotError as error:
        raise FunctionError(f"its SQL is not an expression: {_first_line(error)}") from error
    if reads_tables(tree):
        if parameters:
            raise FunctionError(
                "its SQL reads tables, which only functions without arguments can do: join the "
                "table in the model, or remove the arguments"
            )
        return Expression(text, (), (), False)
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1:
        raise FunctionError("its SQL must be one expression, or a `select` of one")
    node = tree.expressions[0]
    end = len(query)
    if isinstance(node, exp.Alias):
        alias = node.args["alias"]
        if "start" not in alias.meta:
            raise FunctionError("its SQL is not an expression: Spark has no `:` in expressions")
        end = len(re.sub(r"(?i)\bas\s*$", "", query[: alias.meta["start"]]))
        node = node.this
    # Names in the text begin behind the word `select`.
    uses = tuple((start, stop, index) for start, stop, index in _uses(node, parameters))
    _require_names(tokens, [p for n, p in enumerate(parameters) if n not in {u[2] for u in uses}])
    return Expression(
        query[len("select") : end],
        tuple((start - len("select"), stop - len("select"), index) for start, stop, index in uses),
        tuple((start - len("select"), stop - len("select")) for start, stop in _variables(node)),
        node.find(exp.AggFunc) is not None,
    )


def reads_tables(tree: exp.Expr) -> bool:
    """Return whether a query reads from something, or has a query in it."""
    nested = [node for node in tree.find_all(exp.Query) if node is not tree]
    return bool(nested) or tree.find(exp.From) is not None or not isinstance(tree, exp.Select)


def _uses(node: exp.Expr, parameters: Sequence[Parameter]) -> Iterator[tuple[int, int, int]]:
    """Yield where an expression uses which parameter."""
    indexes = {parameter.name.lower(): index for index, parameter in enumerate(parameters)}
    for column in node.find_all(exp.Column):
        first = column.parts[0]
        name = first.name.lower()
        if name in indexes and "start" in first.meta:
            yield first.meta["start"], first.meta["end"] + 1, indexes[name]
        elif name not in NONDETERMINISTIC:
            raise FunctionError(
                f"its SQL uses `{first.name}`, which is not one of its arguments: "
                f"{', '.join(p.name for p in parameters) or 'it has none'}"
            )


def _require_names(tokens: Sequence[Token], unused: Sequence[Parameter]) -> None:
    """Refuse arguments whose names are words of SQL where the SQL means them."""
    names = {parameter.name.lower() for parameter in unused}
    for before, token in zip([None, *tokens], tokens, strict=False):
        is_word = token.token_type not in {TokenType.VAR, TokenType.IDENTIFIER, *TEXTS}
        is_field = before is not None and before.token_type == TokenType.DOT
        if token.text.lower() in names and is_word and not is_field:
            raise FunctionError(
                f"`{token.text}` has another meaning in its SQL than the argument of this name: "
                "write it in backticks there, or rename the argument"
            )


def _variables(node: exp.Expr) -> set[tuple[int, int]]:
    """Return where an expression mentions variables of its lambdas."""
    mentions: set[tuple[int, int]] = set()
    for function in node.find_all(exp.Lambda):
        names = {variable.name.lower() for variable in function.expressions}
        for word in function.find_all(exp.Identifier):
            is_field = isinstance(word.parent, exp.Dot) and word.arg_key == "expression"
            is_column = isinstance(word.parent, exp.Column)
            if word.name.lower() in names and not is_field and not is_column:
                mentions.add((word.meta["start"], word.meta["end"] + 1))
    return mentions


def mentioned(sql: str, names: Mapping[str, object]) -> list[str]:
    """Return the functions that a text mentions in backticks, which is fast.

    Args:
        sql: the text.
        names: functions by their names.
    """
    return [name for name in names if quote(name) in sql] if "`" in sql else []


def calls(sql: str, names: Mapping[str, object]) -> list[str]:
    """Return the functions that a statement calls, without mentions in texts and comments.

    Args:
        sql: the statement.
        names: functions by their names.
    """
    candidates = mentioned(sql, names)
    try:
        tokens: list[Token] = Spark().tokenize(sql) if candidates else []
    except TokenError:
        return candidates
    names_of_calls = {t.text for index, t in enumerate(tokens) if _is_call(tokens, index)}
    return [name for name in candidates if name in names_of_calls]


def expand_calls(sql: str, functions: Mapping[str, Signature]) -> str:
    """Replace the calls of functions in a statement.

    Args:
        sql: the statement.
        functions: functions by their names.

    Returns:
        A statement that Spark can run; the same text if it is not valid SQL.

    Raises:
        FunctionError: a call has wrong arguments.
    """
    try:
        tokens: list[Token] = Spark().tokenize(sql)
    except TokenError:
        return sql
    parts, position, index = [], 0, 0
    while index < len(tokens):
        token = tokens[index]
        function = functions.get(token.text)
        if function is not None and _is_call(tokens, index):
            arguments, end = _arguments(sql, tokens, index + 1)
            _refuse_aggregate_clauses(function, arguments, tokens[end + 1 : end + 2])
            arguments = [expand_calls(argument, functions) for argument in arguments]
            parts += [sql[position : token.start], _replacement(function, arguments, functions)]
            position, index = tokens[end].end + 1, end
        index += 1
    return "".join([*parts, sql[position:]])


def _is_call(tokens: Sequence[Token], index: int) -> bool:
    is_name = tokens[index].token_type == TokenType.IDENTIFIER
    follows = index + 1 < len(tokens) and tokens[index + 1].token_type == TokenType.L_PAREN
    return is_name and follows and (index == 0 or tokens[index - 1].token_type != TokenType.DOT)


def _arguments(sql: str, tokens: Sequence[Token], opening: int) -> tuple[list[str], int]:
    """Return the texts of a call's arguments, and the index of its closing parenthesis.

    A comment before an argument is no part of it: the name of a named argument comes first.
    """
    depth, texts, first = 0, [], opening + 1
    for index in range(opening, len(tokens)):
        token = tokens[index]
        depth += (token.token_type in OPENING) - (token.token_type in CLOSING)
        if depth == 0 or (depth == 1 and token.token_type == TokenType.COMMA):
            texts.append(sql[tokens[first].start : token.start].strip())
            first = index + 1
        if depth == 0:
            return [] if texts == [""] else texts, index
    raise FunctionError(f"The call of {quote(tokens[opening - 1].text)} has no closing parenthesis")


def _refuse_aggregate_clauses(
    function: Signature, arguments: Sequence[str], following: Sequence[Token]
) -> None:
    """Refuse clauses that belong to one aggregate function, which an expression is not."""
    if function.expression is None or not function.expression.aggregates:
        return
    words = [argument.split(maxsplit=1)[0].lower() for argument in arguments[:1] if argument]
    words += [token.text.lower() for token in following]
    if clause := [word for word in words if word in AGGREGATE_CLAUSES]:
        raise FunctionError(
            f"{quote(function.name)} is an aggregate function in SQL and cannot be called with "
            f"`{clause[0]}`. Put the clause into the function's SQL."
        )


def _replacement(
    function: Signature, arguments: Sequence[str], functions: Mapping[str, Signature]
) -> str:
    """Return what replaces a call."""
    values = [
        f"cast(({_closed(value)}) as {parameter.type})"
        for value, parameter in zip(_bind(function, arguments), function.parameters, strict=True)
    ]
    if function.expression is None:
        return f"{quote(function.name)}({', '.join(values)})"
    expression = function.expression
    _refuse_repeated_random(function, values, functions)
    replaced: list[Replacement] = [(*where, values[index]) for *where, index in expression.uses]  # type: ignore[misc]
    for start, end in expression.variables:
        # Another name, which no column of an argument has.
        name = expression.sql[start:end].strip("`")
        replaced.append((start, end, quote(f"{function.name}.{name}".replace(".", "$"))))
    body = expression.sql
    for start, end, text in sorted(replaced, reverse=True):
        body = body[:start] + text + body[end:]
    body = expand_calls(_closed(body.strip()), functions)
    return f"cast(({body}) as {function.returns}){VOLATILE_MARK if function.volatile else ''}"


def _bind(function: Signature, arguments: Sequence[str]) -> list[str]:
    """Return the SQL of each parameter's value in a call."""
    parameters = function.parameters
    values: dict[str, str] = {}
    only_named = False
    for index, argument in enumerate(arguments):
        named = re.match(r"(`?)(\w+)\1\s*=>\s*(.*)", argument, re.DOTALL)
        only_named = only_named or named is not None
        if named is not None and named[2].lower() not in values:
            values[named[2].lower()] = named[3]
        elif index < len(parameters) and not only_named:
            values[parameters[index].name.lower()] = argument
        else:
            raise _wrong_call(function, f"got {len(arguments)}: {', '.join(arguments)}")
    names = {parameter.name.lower() for parameter in parameters}
    if unknown := [name for name in values if name not in names]:
        raise _wrong_call(function, f"not `{unknown[0]}`")
    bound = [values.get(parameter.name.lower(), parameter.default) for parameter in parameters]
    if missing := [p.name for p, value in zip(parameters, bound, strict=True) if value is None]:
        raise _wrong_call(function, f"`{missing[0]}` is missing")
    return [value for value in bound if value is not None]


def _wrong_call(function: Signature, reason: str) -> FunctionError:
    takes = [
        f"{p.name} {p.type}" + (f" default {p.default}" if p.default is not None else "")
        for p in function.parameters
    ]
    listed = f"({', '.join(takes)})" if takes else "no arguments"
    return FunctionError(f"{quote(function.name)} takes {listed}; {reason}. Correct the call.")


def _refuse_repeated_random(
    function: Signature, values: Sequence[str], functions: Mapping[str, Signature]
) -> None:
    """Refuse a random argument that the function's SQL uses twice: each use has another value."""
    assert function.expression is not None
    indexes = [index for *_, index in function.expression.uses]
    random = RANDOM | {f.name.lower() for f in functions.values() if f.volatile}
    for index, value in enumerate(values):
        if indexes.count(index) < 2:
            continue
        words = {token.text.lower() for token in Spark().tokenize(value)}
        if words & random or VOLATILE_MARK in value:
            raise FunctionError(
                f"{quote(function.name)} uses its argument `{function.parameters[index].name}` "
                "several times, and each use of a random value would get another one. Compute the "
                "value in a model or in a cached table first."
            )


def _closed(text: str) -> str:
    """Return a text behind which a parenthesis is not part of a comment."""
    return f"{text}\n" if "--" in text else text


def _first_line(error: SqlglotError) -> str:
    return str(error).split("\n")[0]
