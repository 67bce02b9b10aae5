"""Finds the parts of a select in a query's text.

A parser that generates SQL may change expressions: `to_char(a, 'yyyy')` became a cast. Working on
the text keeps the user's expressions unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot.tokens import Token, TokenType

from dbt.adapters.iceberg_stream.sql.dialect import Spark

OPEN = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
CLOSE = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}


@dataclass(frozen=True)
class SelectText:
    """Positions of one select's parts.

    Attributes:
        columns: begin and end of each column, as offsets in the text.
        source: index of the token after `from`.
        where: offsets of the keyword, of the condition, and of its end.
    """

    columns: tuple[tuple[int, int], ...]
    source: int
    where: tuple[int, int, int] | None


class QueryText:
    """The text of a query, and its tokens.

    Args:
        sql: the query.

    Raises:
        TokenError: the text is not SQL.
    """

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.tokens: Sequence[Token] = Spark().tokenize(sql)

    def select(self, number: int) -> SelectText | None:
        """Return the parts of a select; None if it has no `from`.

        Args:
            number: index of the keyword `select`.
        """
        columns: list[tuple[int, int]] = []
        begin = number + 1
        source = where = None
        for index in self._of_level(begin):
            kind = self.tokens[index].token_type
            if source is None and (kind is TokenType.COMMA or self._is_from(index)):
                columns.append(self._span(begin, index))
                begin = index + 1
                source = begin if kind is TokenType.FROM else None
            elif kind is TokenType.WHERE:
                where = index
        if source is None:
            return None
        if where is None:
            return SelectText(tuple(columns), source, None)
        last = max(self._of_level(number + 1))
        condition = self._span(where + 1, last + 1)
        return SelectText(tuple(columns), source, (self.tokens[where].start, *condition))

    def first_select(self, number: int) -> int | None:
        """Return the index of the first `select` of a query.

        Args:
            number: index of the query's first token.
        """
        level = self._of_level(number)
        return next((n for n in level if self.tokens[n].token_type is TokenType.SELECT), None)

    def part(self, name: str) -> int | None:
        """Return the index of the first token in `name as (…)`; None if it is not unique.

        Args:
            name: of the common table expression.
        """
        starts = [
            index + 3
            for index, token in enumerate(self.tokens[:-2])
            if token.text.lower() == name.lower()
            and self.tokens[index + 1].token_type is TokenType.ALIAS
            and self.tokens[index + 2].token_type is TokenType.L_PAREN
        ]
        return starts[0] if len(starts) == 1 else None

    def reader(self, name: str) -> int | None:
        """Return the index of the `select` that reads a relation; None if it is not unique.

        Args:
            name: of the relation.
        """
        places = [
            self._outside(index)
            for index, token in enumerate(self.tokens)
            if token.text.lower() == name.lower()
        ]
        selects = [self.around(place) for place in places if place and self._is_source(place)]
        return selects[0] if len(selects) == 1 else None

    def around(self, number: int) -> int | None:
        """Return the index of the `select` that has a token at its level of parentheses.

        Args:
            number: index of the token.
        """
        depth = 0
        for index in range(number - 1, -1, -1):
            kind = self.tokens[index].token_type
            if kind in CLOSE:
                depth += 1
            elif kind in OPEN and depth == 0:
                return None
            elif kind in OPEN:
                depth -= 1
            elif kind is TokenType.SELECT and depth == 0:
                return index
        return None

    def opening(self, number: int) -> int | None:
        """Return the index of the parenthesis that encloses a token.

        Args:
            number: index of the token.
        """
        depth = 0
        for index in range(number - 1, -1, -1):
            kind = self.tokens[index].token_type
            if kind in OPEN and depth == 0:
                return index
            depth += (kind in CLOSE) - (kind in OPEN)
        return None

    def text(self, span: tuple[int, int]) -> str:
        """Return the text between two offsets."""
        return self.sql[span[0] : span[1]]

    def _of_level(self, number: int) -> list[int]:
        """Return the indexes of the following tokens at the same level of parentheses."""
        indexes, depth = [], 0
        for index in range(number, len(self.tokens)):
            kind = self.tokens[index].token_type
            if kind in CLOSE and depth == 0:
                break
            depth -= kind in CLOSE
            if depth == 0:
                indexes.append(index)
            depth += kind in OPEN
        return indexes

    def _is_source(self, number: int) -> bool:
        """Return whether a select reads what begins with a token."""
        before = self.tokens[number - 1].token_type
        if before is TokenType.JOIN or self._is_from(number - 1):
            return True
        around = self.around(number) if before is TokenType.COMMA else None
        select = None if around is None else self.select(around)
        return select is not None and select.source < number

    def _outside(self, number: int) -> int:
        """Return the index of a token, or of the first parenthesis right before it."""
        while number and self.tokens[number - 1].token_type is TokenType.L_PAREN:
            number -= 1
        return number

    def _is_from(self, number: int) -> bool:
        before = self.tokens[number - 1].token_type  # `is distinct from` compares
        return self.tokens[number].token_type is TokenType.FROM and before is not TokenType.DISTINCT

    def _span(self, begin: int, end: int) -> tuple[int, int]:
        """Return the offsets of a range of tokens; an empty span for an empty range."""
        if begin >= end:
            return self.tokens[begin].start, self.tokens[begin].start
        return self.tokens[begin].start, self.tokens[end - 1].end + 1


def words(text: str) -> list[str]:
    """Return the tokens of an expression's text, of which some are names."""
    return [token.text for token in Spark().tokenize(text)]


def without_alias(item: str) -> str:
    """Return the text of an item of a select list without its alias.

    Args:
        item: the text, which ends with an alias.
    """
    *rest, last = Spark().tokenize(item)
    if rest and rest[-1].token_type is TokenType.ALIAS:
        last = rest[-1]
    return item[: last.start].rstrip()
