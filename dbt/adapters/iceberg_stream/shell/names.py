"""Names of a project that can be typed, from the manifest.json of dbt's last command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Packages of macros that every project has.
OWN_MACROS = ("dbt", "dbt_spark", "dbt_iceberg_stream")
# What a selector of dbt compares, for methods whose values do not depend on the project.
FIXED_VALUES = {
    "access": ("private", "protected", "public"),
    "result": ("error", "fail", "skipped", "success", "warn"),
    "source_status": ("fresher",),
    "state": ("modified", "new", "old", "unmodified"),
    "test_type": ("data", "generic", "singular", "unit"),
}


@dataclass(frozen=True)
class Names:
    """Names of a project.

    Attributes:
        nodes: of models, seeds, snapshots and tests.
        methods: values of each method of selectors, such as `tag`.
        selectors: of selectors.yml.
        macros: of the project and its packages.
    """

    nodes: tuple[str, ...] = ()
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict(FIXED_VALUES))
    selectors: tuple[str, ...] = ()
    macros: tuple[str, ...] = ()


def read_names(manifest: Mapping[str, Any]) -> Names:
    """Return the names in a manifest.

    Args:
        manifest: the content of manifest.json.
    """
    methods = {method: set(values) for method, values in FIXED_VALUES.items()}
    for method, value in _methods(manifest):
        methods.setdefault(method, set()).add(value)
    nodes = {node["name"] for node in manifest["nodes"].values() if "name" in node}
    macros = {
        macro["name"]
        for macro in manifest["macros"].values()
        if macro["package_name"] not in OWN_MACROS
    }
    return Names(
        tuple(sorted(nodes)),
        {method: tuple(sorted(values)) for method, values in methods.items()},
        tuple(sorted(manifest.get("selectors") or ())),
        tuple(sorted(macros)),
    )


def _methods(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the methods of selectors that select something, with a value."""
    for node in manifest["nodes"].values():
        yield from (("tag", tag) for tag in node.get("tags") or ())
        yield "package", node["package_name"]
        yield "resource_type", node["resource_type"]
        path = Path(node["original_file_path"])
        yield from (("path", str(each)) for each in (path, *path.parents) if each.name)
        if materialized := (node.get("config") or {}).get("materialized"):
            yield "config.materialized", materialized
    for source in manifest["sources"].values():
        yield from (("tag", tag) for tag in source.get("tags") or ())
        yield "source", source["source_name"]
        yield "source", f"{source['source_name']}.{source['name']}"
    for kind in ("exposures", "metrics", "groups", "saved_queries", "unit_tests"):
        for resource in (manifest.get(kind) or {}).values():
            yield kind.removesuffix("s").replace("querie", "query"), resource["name"]


class NameReader:
    """Reads the names of a project again when manifest.json has changed.

    Args:
        path: of manifest.json, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: tuple[int, int] | None = None
        self._names = Names()

    def read(self) -> Names:
        """Return the names; those of before while a command writes the file."""
        try:
            status = self._path.stat()
            state = status.st_mtime_ns, status.st_size
            if state != self._state:
                self._names = read_names(json.loads(self._path.read_bytes()))
                self._state = state
        except (OSError, ValueError):
            pass
        return self._names
