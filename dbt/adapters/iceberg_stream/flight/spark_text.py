"""The text of a statement as Spark's lexer takes it apart, without comments and hints."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot.dialects import Spark
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType

# Spark's lexer, as far as it decides where texts, quoted names and comments begin and end.
QUOTED = r"""[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`"""
PIECES = re.compile(
    rf"(?P<quoted>{QUOTED})"
    # A backslash at the end of a line goes on with the comment.
    r"|(?P<line>--(?:\\\n|[^\r\n])*)|(?P<open>/\*)"
    r"|(?P<word>\w+)|(?P<space>[ \t\r\n]+)|(?P<other>.)",
    re.DOTALL,
)
# sqlglot takes what stands behind these words for one text.
COMMANDS = re.compile(r"(show|explain)(?=\W)", re.IGNORECASE)
COMMENT_EDGE = re.compile(r"/\*|\*/")
# Of `{` and `$` Spark and templates make things that no parser of SQL sees.
ALLOWED_SIGNS = frozenset("()[]<>=!+-*/%&|^~.,:;")
STRINGS = {TokenType.STRING, TokenType.RAW_STRING}


class NotAllowed(ValueError):
    """A statement that this server does not run."""


@dataclass(frozen=True)
class Word:
    """A token; `name` is in lower case and empty for texts."""

    token: Token
    name: str
    quoted: bool

    def is_word(self, *names: str) -> bool:
        """Whether it is one of these words, not in backticks."""
        return not self.quoted and self.name in names

    @property
    def is_name(self) -> bool:
        """Whether it may be a part of a name."""
        if self.token.token_type in STRINGS:
            return False
        return self.quoted or self.name.replace("_", "a").isalnum()


def without_comments(sql: str) -> str:
    """One statement with a blank in the place of each comment and hint.

    Raises:
        NotAllowed: it has signs whose meaning could be in doubt, or its end is missing.
    """
    kept: list[str] = []
    at = 0
    while at < len(sql):
        piece = PIECES.match(sql, at)
        assert piece is not None, "the last alternative takes any sign"
        kind, text = piece.lastgroup, piece[0]
        at = _end_of_comment(sql, at) if kind == "open" else piece.end()
        if kind == "word" and not text.isascii():
            raise NotAllowed(f"`{text}` must be in backticks: it is not ASCII.")
        if kind == "other" and text not in ALLOWED_SIGNS:
            raise NotAllowed(f"The sign {text!r} is allowed within texts and backticks only.")
        kept.append(" " if kind in ("line", "open") else text)
    return "".join(kept).strip().rstrip(";").rstrip()


def _end_of_comment(sql: str, start: int) -> int:
    """Where a comment ends; others may be within it."""
    depth = 0
    for edge in COMMENT_EDGE.finditer(sql, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise NotAllowed("A comment has no end.")


def words(sql: str) -> list[Word]:
    """The tokens of a text without comments; sqlglot must see the same texts and names as Spark.

    Raises:
        NotAllowed: it does not.
    """
    command = COMMANDS.match(sql)
    try:
        # Another word of the same length keeps the places of the others.
        tokens = Spark().tokenize("_" * command.end() + sql[command.end() :] if command else sql)
    except TokenError as error:
        raise NotAllowed(f"The statement cannot be read: {error}") from error
    spans = [piece.span() for piece in PIECES.finditer(sql) if piece.lastgroup == "quoted"]
    seen = [(t.start, t.end + 1) for t in tokens if sql[t.start : t.end + 1][-1:] in "'\"`"]
    if spans != seen or any(token.comments for token in tokens):
        raise NotAllowed("The statement's quotes or comments are ambiguous.")
    found = []
    for index, token in enumerate(tokens):
        quoted = token.token_type == TokenType.IDENTIFIER
        text = token.token_type in STRINGS
        name = command[0] if command and index == 0 else token.text
        found.append(Word(token, "" if text else name.lower(), quoted or text))
    return found
