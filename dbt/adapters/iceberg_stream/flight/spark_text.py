"""Split a statement into tokens exactly as Spark's lexer does, without comments and hints."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot.dialects import Spark
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType

# The rules of Spark's lexer for string literals, quoted names and comments.
QUOTED = r"""[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`"""
PIECES = re.compile(
    rf"(?P<quoted>{QUOTED})"
    # A backslash at the end of a line continues the comment.
    r"|(?P<line>--(?:\\\n|[^\r\n])*)|(?P<open>/\*)"
    r"|(?P<word>\w+)|(?P<space>[ \t\r\n]+)|(?P<other>.)",
    re.DOTALL,
)
# After these words sqlglot takes the rest of the statement as one string.
COMMANDS = re.compile(r"(show|explain)(?=\W)", re.IGNORECASE)
COMMENT_EDGE = re.compile(r"/\*|\*/")
# Not `{` and `$`: Spark and templates replace them before the SQL parser.
ALLOWED_SIGNS = frozenset("()[]<>=!+-*/%&|^~.,:;")
STRINGS = {TokenType.STRING, TokenType.RAW_STRING}


class NotAllowed(ValueError):
    """A statement that this server does not run."""


@dataclass(frozen=True)
class SparkToken:
    """A token of a statement.

    Attributes:
        token: sqlglot's token.
        name: its text in lower case; empty for string literals.
        quoted: whether it is in backticks or a string literal.
    """

    token: Token
    name: str
    quoted: bool

    def is_word(self, *names: str) -> bool:
        """Return whether it is one of these words, not in backticks."""
        return not self.quoted and self.name in names

    @property
    def is_name(self) -> bool:
        """Return whether it may be a part of a name."""
        if self.token.token_type in STRINGS:
            return False
        return self.quoted or self.name.replace("_", "a").isalnum()


def without_comments(sql: str) -> str:
    """Replace each comment and hint of a statement by a blank.

    Args:
        sql: the statement.

    Raises:
        NotAllowed: a character is ambiguous, or a comment has no end.
    """
    pieces: list[str] = []
    at = 0
    while at < len(sql):
        piece = PIECES.match(sql, at)
        assert piece is not None, "the last alternative matches any character"
        kind, text = piece.lastgroup, piece[0]
        at = _end_of_comment(sql, at) if kind == "open" else piece.end()
        if kind == "word" and not text.isascii():
            raise NotAllowed(f"`{text}` is not ASCII: put it in backticks.")
        if kind == "other" and text not in ALLOWED_SIGNS:
            raise NotAllowed(
                f"The character {text!r} is allowed in string literals and backticks only."
            )
        pieces.append(" " if kind in ("line", "open") else text)
    return "".join(pieces).strip().rstrip(";").rstrip()


def _end_of_comment(sql: str, start: int) -> int:
    """Return the end of a comment, which may have nested comments."""
    depth = 0
    for edge in COMMENT_EDGE.finditer(sql, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise NotAllowed("A comment has no end.")


def tokenize(sql: str) -> list[SparkToken]:
    """Return the tokens of a statement without comments.

    Args:
        sql: the statement.

    Raises:
        NotAllowed: sqlglot finds other string literals or quoted names than Spark.
    """
    command = COMMANDS.match(sql)
    try:
        # A replacement of the same length keeps the positions of the other tokens.
        tokens = Spark().tokenize("_" * command.end() + sql[command.end() :] if command else sql)
    except TokenError as error:
        raise NotAllowed(f"The statement cannot be read: {error}") from error
    spans = [piece.span() for piece in PIECES.finditer(sql) if piece.lastgroup == "quoted"]
    token_spans = [(t.start, t.end + 1) for t in tokens if sql[t.start : t.end + 1][-1:] in "'\"`"]
    if spans != token_spans or any(token.comments for token in tokens):
        raise NotAllowed("The statement's quotes or comments are ambiguous.")
    result = []
    for index, token in enumerate(tokens):
        quoted = token.token_type == TokenType.IDENTIFIER
        text = token.token_type in STRINGS
        name = command[0] if command and index == 0 else token.text
        result.append(SparkToken(token, "" if text else name.lower(), quoted or text))
    return result
