"""Names of a project that can be typed, from the manifest.json of dbt's last command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dbt_common.exceptions import DbtBaseException

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
# Methods that compare the names of resources, and where the manifest has these.
RESOURCES = {
    "exposure": "exposures",
    "group": "groups",
    "metric": "metrics",
    "saved_query": "saved_queries",
    "semantic_model": "semantic_models",
    "unit_test": "unit_tests",
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
    for method, kind in RESOURCES.items():
        yield from ((method, each["name"]) for each in (manifest.get(kind) or {}).values())


class NameReader:
    """Reads the names of a project again when manifest.json has changed.

    Args:
        find: returns the path of manifest.json, which need not exist.
    """

    def __init__(self, find: Callable[[], Path]) -> None:
        self._find = find
        self._state: tuple[int, int] | None = None
        self._names = Names()

    def read(self) -> Names:
        """Return the names; those of before if the file cannot be read now."""
        with suppress(DbtBaseException, OSError, ValueError):
            path = self._find()
            status = path.stat()
            state = status.st_mtime_ns, status.st_size
            if state != self._state:
                self._names = read_names(json.loads(path.read_bytes()))
                self._state = state
        return self._names
