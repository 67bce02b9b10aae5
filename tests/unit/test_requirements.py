"""Users get what `setup.py` requires, and nothing of what only development needs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = "dbt-iceberg-stream"
SOURCE = Path(__file__).parents[2] / "dbt"


def required(name: str, extras: set[str], seen: set[str]) -> set[str]:
    """The distributions that an installation brings, with those that they bring."""
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        other = canonicalize_name(requirement.name)
        if other not in seen:
            seen.add(other)
            required(other, set(requirement.extras), seen)
    return seen


def imported() -> Iterator[tuple[str, str]]:
    """The modules that are imported, and where, but for the package's own."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                if name.split(".")[0] not in sys.stdlib_module_names:
                    yield name, path.name


def test_all_that_is_imported_is_required() -> None:
    extras = set(metadata.metadata(PACKAGE).get_all("Provides-Extra") or [])
    available = required(PACKAGE, extras, {PACKAGE})
    providers = metadata.packages_distributions()
    missing = {
        (name, place)
        for name, place in imported()
        if not {canonicalize_name(one) for one in providers[name.split(".")[0]]} & available
    }
    assert not missing
