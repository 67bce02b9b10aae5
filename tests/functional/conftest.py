"""Spares the dbt commands of tests work that takes a third of their time and shows nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from dbt.config import Project
from dbt.contracts.files import FilePath
from dbt.parser import read_files
from dbt_common.behavior_flags import BehaviorFlagRendered
from dbt_common.clients.system import write_file
from dbt_common.utils.encoding import JSONEncoder
from pathspec import PathSpec

# A command leaves its first small tables to Spark as long as this is not imported. Here, the commands
# of all tests share a process, so that it would depend on the tests before.
import dbt.adapters.iceberg_stream.tables.ingest.ingest  # noqa: F401

# Where a command that runs, and one that parses, take it from. The first is imported from the second
# one, and must not be imported while that is replaced.
# In the path of a package that is installed with an adapter.
INCLUDED = os.sep + os.path.join("dbt", "include") + os.sep
WRITE_MANIFEST = ("dbt.task.runnable.write_manifest", "dbt.parser.manifest.write_manifest")


@pytest.fixture(scope="session", autouse=True)
def quick_commands() -> Iterator[None]:
    """Avoid three detours of dbt.

    It looks through the whole call stack, which is deep in a test, for the module that created an
    adapter, writes its artifacts with the encoder of `json` that is written in Python, and looks in
    each command for the files of its own packages and of ours.
    """
    found: dict[tuple[str, ...], list[FilePath]] = {}
    search = read_files.filesystem_search

    def find_once(
        package: Project, folders: list[str], extension: str, ignored: PathSpec | None
    ) -> list[FilePath]:
        if INCLUDED not in package.project_root:
            return search(package, folders, extension, ignored)
        key = (package.project_root, extension, *folders)
        if key not in found:
            found[key] = search(package, folders, extension, ignored)
        return found[key]

    def write_json(path: str, data: object) -> bool:
        return write_file(path, json.dumps(data, cls=JSONEncoder))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BehaviorFlagRendered, "_default_source", staticmethod(lambda: "dbt"))
        patch.setattr("dbt.artifacts.schemas.base.write_json", write_json)
        patch.setattr("dbt.artifacts.schemas.run.v5.run.write_json", write_json)
        patch.setattr(read_files, "filesystem_search", find_once)
        yield


@pytest.fixture(scope="class", autouse=True)
def manifest_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Write manifest.json for tests that need it only: each run writes it twice."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("manifest") is None:
            for function in WRITE_MANIFEST:
                patch.setattr(function, lambda *_, **__: None)
        yield
