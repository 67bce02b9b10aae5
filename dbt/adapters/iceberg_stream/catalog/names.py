"""Names of namespaces and tables that become parts of paths, on disk and in URLs."""

from __future__ import annotations

import re

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError

# Characters that separate or end paths.
SEPARATORS = re.compile(r"[/\\\x00-\x1f\x7f]")


def is_path_part(name: str) -> bool:
    """Return whether a name, as a part of a path, stays below what is before it.

    Args:
        name: of a table, or of one level of a namespace.
    """
    return name not in ("", ".", "..") and not SEPARATORS.search(name)


def require_names(namespace: str, name: str | None = None) -> None:
    """Check the name of a namespace or a table before something is created under it.

    Args:
        namespace: levels joined by dots.
        name: the table's identifier; None for the namespace itself.

    Raises:
        CatalogError: a path with the name would lead elsewhere.
    """
    if not all(is_path_part(level) for level in namespace.split(".")):
        raise _refusal("schema", namespace)
    if name is not None and not is_path_part(name):
        raise _refusal("table or view", name)


def _refusal(kind: str, name: str) -> CatalogError:
    return CatalogError(
        f"{name!r} cannot be the name of a {kind}: it is empty, `.` or `..`, or has `/`, `\\` "
        "or control characters. Choose another name."
    )


def table_folder(warehouse: str, namespace: str, name: str) -> str:
    """Return the folder of a new table or view.

    Args:
        warehouse: location of the warehouse.
        namespace: levels joined by dots.
        name: the table's identifier.

    Raises:
        CatalogError: the folder would be outside the warehouse.
    """
    require_names(namespace, name)
    return f"{warehouse}/{namespace}/{name}"
