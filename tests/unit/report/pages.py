"""What a browser makes of a page, as far as tests need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}
INLINE = {"a", "code", "span", "strong", "time", "h3"}


@dataclass
class Page(HTMLParser):
    """A page's elements, ids, links and visible text; wrong nesting is an error."""

    html: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> at {self.getpos()}"
        if tag not in INLINE:
            self.text += " "

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data

    def attributes(self, name: str) -> list[str]:
        """All values of an attribute."""
        return [str(attributes[name]) for _, attributes in self.elements if name in attributes]

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    @property
    def words(self) -> str:
        """The text with single spaces."""
        return " ".join(self.text.split())
