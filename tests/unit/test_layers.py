"""The rules of CONTRIBUTING.md: packages import each other one way only, files stay small.

import-linter cannot see a package that lives inside another distribution's `dbt` package.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import dbt.adapters.iceberg_stream as package

ROOT = Path(package.__file__).parent
PREFIX = "dbt.adapters.iceberg_stream."
# From the surface down, as in CONTRIBUTING.md. A package imports from layers below its own, and
# within its layer from those that stand behind it.
LAYERS = {
    "programs": ("__main__", "cli", "shell", "flight", "api"),
    "dbt": (
        *("__init__", "impl", "connections", "credentials", "column"),
        *("materializations", "sessions", "profile", "summary"),
    ),
    "streams": ("report", "maintenance", "stream", "unchanged", "builds", "diff"),
    "tables": ("relation", "tables"),
    "catalog": ("catalog",),
    "Spark": ("engines",),
    "text": ("sql", "errors", "__version__"),
}
ORDER = [package for packages in LAYERS.values() for package in packages]
# The same within packages that have packages of their own; `*` is any module that is not named.
SUBPACKAGES: dict[str, tuple[set[str], ...]] = {
    "builds": (
        {"run", "versions"},
        {"relations"},
        {"build"},
        {"leftovers"},
        {"publish"},
        {"plan"},
        {"comparison", "replaced"},
        {"updates"},
        {"staged"},
        {"nodes"},
        {"commands"},
        {"aliases", "deferred", "settings"},
        {"names"},
        {"errors"},
    ),
    "catalog": ({"*"}, {"identity"}),
    "diff": (
        {"diff", "render"},
        {"difference", "reader", "partitions"},
        {"files", "schemas", "matching"},
        {"version", "values"},
        {"errors"},
    ),
    "report": (
        {"live"},
        {"render", "gather"},
        {"builds"},
        {"charts", "lineage", "listing", "runs", "tables"},
        {"contents"},
        {"history", "project"},
    ),
    "maintenance": ({"maintain"}, {"steps"}, {"*"}, {"check"}),
    "stream": (
        {"stream", "groups", "routes"},
        {"commit_queue", "write_window"},
        {"table_stream"},
        {"table_maintenance"},
        {"batches"},
        {"sink", "query"},
        {"row_deltas"},
        {"key_index"},
        {"service"},
        {"status", "http_server"},
        {"sources"},
        {"options"},
        {"errors"},
    ),
    "stream.sources": (
        {"registry"},
        {"kafka", "files", "iceberg", "postgres"},
        {"formats"},
        {"definition_check", "source", "type_sql"},
    ),
    "stream.sources.kafka": ({"*"}, {"transactions"}, {"kept_messages"}, {"message_batch"}),
    "tables": (
        {"drop"},
        {"clones", "compaction"},
        {"references"},
        {"merge"},
        {"deletes", "ingest"},
        {"commit"},
        {"files", "keys"},
    ),
}
WORKER_CODE = (
    "engines/arrow_offsets.py",
    "engines/python_functions.py",
    "tables/files/casting.py",
    "tables/files/field_ids.py",
    "tables/files/parquet.py",
    "tables/files/projection.py",
    "tables/files/reader.py",
    "tables/files/uploads.py",
    "tables/merge/actions.py",
    "tables/merge/conditions.py",
    "tables/merge/rows.py",
    "tables/merge/file_rewrite.py",
    "tables/merge/file_task.py",
    "stream/row_deltas/changes.py",
    "stream/row_deltas/sub_batch.py",
    "stream/row_deltas/row_delta.py",
    "stream/sources/iceberg/file_rows.py",
)
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def package_of(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


def level(part: str, layers: tuple[set[str], ...]) -> int:
    named = any(part in parts for parts in layers)
    return next(index for index, parts in enumerate(layers) if (part if named else "*") in parts)


def imports(module: Path, prefix: str = PREFIX) -> set[str]:
    """Packages that a module imports, those for type checking only among them."""
    tree = ast.parse((ROOT / module).read_text())
    return {
        name.removeprefix(prefix).split(".")[0]
        for name in imported(tree)
        if name.startswith(prefix)
    }


def imported(tree: ast.Module) -> list[str]:
    """Modules that another one imports, wherever in it."""
    return [
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_dependencies_point_one_way(module: Path) -> None:
    package = package_of(module)
    behind = set(ORDER[ORDER.index(package) + 1 :])
    assert imports(module) - {package} <= behind


def test_contributors_read_of_the_same_layers() -> None:
    text = (ROOT.parents[2] / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (.+?) \|", text, re.MULTILINE)
    listed = {layer: tuple(re.findall(r"`(\w+)`", packages)) for layer, packages in rows}
    assert {layer: listed.get(layer) for layer in LAYERS} == LAYERS


@pytest.mark.parametrize("package", SUBPACKAGES)
def test_dependencies_within_packages_point_one_way(package: str) -> None:
    layers, parts = SUBPACKAGES[package], tuple(package.split("."))
    for module in MODULES:
        part = module.parts[min(len(parts), len(module.parts) - 1)].removesuffix(".py")
        if module.parts[: len(parts)] != parts or part == "__init__":
            continue
        own = level(part, layers)
        others = {level(other, layers) for other in imports(module, f"{PREFIX}{package}.") - {part}}
        # Modules that are not named may import each other.
        wrong = {
            other for other in others if other < own or (other == own and "*" not in layers[own])
        }
        assert not wrong, module


@pytest.mark.parametrize("module", [m for m in MODULES if m.parts[0] == "stream"], ids=str)
def test_streams_know_no_kind_of_source(module: Path) -> None:
    if module.parts[1] != "sources":
        assert imports(module, f"{PREFIX}stream.sources.") <= {"source"}


def test_imported_distributions_are_declared() -> None:
    """What another package happens to bring along may be gone with its next release."""
    setup = ast.parse((ROOT.parents[2] / "setup.py").read_text())
    strings = [node.value for node in ast.walk(setup) if isinstance(node, ast.Constant)]
    declared = {
        canonicalize_name(re.split(r"[^\w.-]", text)[0])
        for text in strings
        if isinstance(text, str)
    }
    distributions = packages_distributions()
    for module in MODULES:
        for name in imported(ast.parse((ROOT / module).read_text())):
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or top == "dbt":
                continue
            names = {canonicalize_name(each) for each in distributions[top]}
            assert names & declared, f"{module} imports {name}"


def test_the_supervisor_imports_nothing_of_the_package() -> None:
    # It is started by its path, so that it need not import dbt.
    assert imports(Path("engines/supervisor.py")) == set()


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_files_stay_small(module: Path) -> None:
    assert len((ROOT / module).read_text().splitlines()) <= 600


@pytest.mark.parametrize("module", WORKER_CODE)
def test_worker_code_needs_pyarrow_only(module: str) -> None:
    """It is shipped to Spark's workers by value: they have nothing of ours."""
    names = imported(ast.parse((ROOT / module).read_text()))
    fellows = {PREFIX + other.removesuffix(".py").replace("/", ".") for other in WORKER_CODE}
    others = {name.split(".")[0] for name in names if name not in fellows}
    assert others <= {"pyarrow", *sys.stdlib_module_names}


def test_what_every_command_of_dbt_imports() -> None:
    """Commands such as `dbt ls` need no table: large packages are imported when they are used."""
    code = "import dbt.adapters.iceberg_stream, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    large = {"confluent_kafka", "cryptography", "grpc", "jwt", "numpy", "pandas", "pyarrow"}
    large |= {"psutil", "pyiceberg", "pyspark", "sqlglot"}
    assert large & set(loaded.stdout.split()) == set()
