"""Where the parts of a select stand in a query's text.

A parser that rewrites a query writes some expressions differently: `to_char(a, 'yyyy')` became a
cast. Here the user's text stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot.dialects import Spark
from sqlglot.tokens import Token, TokenType

OPEN = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
CLOSE = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}


@dataclass(frozen=True)
class SelectText:
    """One select.

    Attributes:
        columns: begin and end of each, as offsets.
        source: number of the token that follows `from`.
        where: begin of the keyword, begin of the condition, and its end.
    """

    columns: tuple[tuple[int, int], ...]
    source: int
    where: tuple[int, int, int] | None


class QueryText:
    """The text of a query, and its tokens.

    Raises:
        TokenError: it has no tokens of SQL.
    """

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.tokens: Sequence[Token] = Spark().tokenize(sql)

    def select(self, number: int) -> SelectText | None:
        """The parts of the select whose keyword is the token; None if it reads nothing."""
        columns: list[tuple[int, int]] = []
        begin = number + 1
        source = where = None
        for here in self._of_level(begin):
            kind = self.tokens[here].token_type
            if source is None and (kind is TokenType.COMMA or self._is_from(here)):
                columns.append(self._span(begin, here))
                begin = here + 1
                source = begin if kind is TokenType.FROM else None
            elif kind is TokenType.WHERE:
                where = here
        if source is None:
            return None
        if where is None:
            return SelectText(tuple(columns), source, None)
        last = max(self._of_level(number + 1))
        condition = self._span(where + 1, last + 1)
        return SelectText(tuple(columns), source, (self.tokens[where].start, *condition))

    def first_select(self, number: int) -> int | None:
        """The keyword of the select that a query is which begins with the token."""
        level = self._of_level(number)
        return next((n for n in level if self.tokens[n].token_type is TokenType.SELECT), None)

    def part(self, name: str) -> int | None:
        """The first token of the only part of the query that has the name: `name as (…)`."""
        found = [
            here + 3
            for here, token in enumerate(self.tokens[:-2])
            if token.text.lower() == name.lower()
            and self.tokens[here + 1].token_type is TokenType.ALIAS
            and self.tokens[here + 2].token_type is TokenType.L_PAREN
        ]
        return found[0] if len(found) == 1 else None

    def reader(self, name: str) -> int | None:
        """The keyword of the only select that reads a relation of the name."""
        found = [
            self.around(here)
            for here, token in enumerate(self.tokens)
            if here and token.text.lower() == name.lower()
            if self.tokens[here - 1].token_type is TokenType.JOIN or self._is_from(here - 1)
        ]
        selects = [select for select in found if select is not None]
        return selects[0] if len(selects) == 1 else None

    def around(self, number: int) -> int | None:
        """The keyword of the select that a token is a part of, not in parentheses there."""
        depth = 0
        for here in range(number - 1, -1, -1):
            kind = self.tokens[here].token_type
            if kind in CLOSE:
                depth += 1
            elif kind in OPEN and depth == 0:
                return None
            elif kind in OPEN:
                depth -= 1
            elif kind is TokenType.SELECT and depth == 0:
                return here
        return None

    def opening(self, number: int) -> int | None:
        """The parenthesis that a token stands in."""
        depth = 0
        for here in range(number - 1, -1, -1):
            kind = self.tokens[here].token_type
            if kind in OPEN and depth == 0:
                return here
            depth += (kind in CLOSE) - (kind in OPEN)
        return None

    def text(self, span: tuple[int, int]) -> str:
        return self.sql[span[0] : span[1]]

    def _of_level(self, number: int) -> list[int]:
        """Tokens from one on that are in the same parentheses, up to where these end."""
        found, depth = [], 0
        for here in range(number, len(self.tokens)):
            kind = self.tokens[here].token_type
            if kind in CLOSE and depth == 0:
                break
            depth -= kind in CLOSE
            if depth == 0:
                found.append(here)
            depth += kind in OPEN
        return found

    def _is_from(self, number: int) -> bool:
        before = self.tokens[number - 1].token_type  # `is distinct from` compares
        return self.tokens[number].token_type is TokenType.FROM and before is not TokenType.DISTINCT

    def _span(self, begin: int, end: int) -> tuple[int, int]:
        """Offsets of tokens; an empty span where there is none."""
        if begin >= end:
            return self.tokens[begin].start, self.tokens[begin].start
        return self.tokens[begin].start, self.tokens[end - 1].end + 1
