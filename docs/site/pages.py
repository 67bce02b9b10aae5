"""Pages of the site that stand at the top of the repository, and links between both places."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Files of the repository, and what they are called in the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "report_vulnerabilities.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, page in PAGES.items():
        content = LINK.sub(_to_site, (ROOT / name).read_text())
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Have a page's links to files at the top of the repository lead to their pages."""
    return re.sub(r"\]\(\.\./([A-Z]+\.md)", lambda match: f"]({PAGES[match[1]]}", markdown)


def _to_site(match: re.Match[str]) -> str:
    target, anchor = match[1], match[2] or ""
    page = PAGES.get(target) or target.removeprefix("docs/")
    if not page.endswith(".md"):
        # A folder of the repository, which the site does not have.
        return f"] `{target}`"
    return f"]({page}{anchor})"
