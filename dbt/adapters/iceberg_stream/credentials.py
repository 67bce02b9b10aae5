"""The profile: parsed and checked once, with every fault listed at once."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from dbt.adapters.contracts.connection import Credentials
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.engines.java import find_java
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES, EngineError

METHODS = ("embedded",)
WARM_SECONDS = 300
MEMORY = re.compile(r"^\d+[kmgt]$", re.IGNORECASE)


def default_keep_alive() -> int:
    """Seconds an idle engine stays warm: some minutes for a person, none in CI and jobs."""
    interactive = sys.stderr.isatty() and not os.environ.get("CI")
    return WARM_SECONDS if interactive else 0


@dataclass
class IcebergStreamCredentials(Credentials):
    """What a profile may say. Only `schema` has no sensible default.

    Attributes:
        schema: namespace that models are built into.
        database: name of the Iceberg catalog; part of the SQLite catalog's key.
        method: where Spark runs.
        warehouse: folder of tables and catalog; relative to the project.
        keep_alive: seconds an idle engine stays warm; 0 stops it with its last user.
        driver_memory: heap of the engine, e.g. `2g`.
        spark_conf: settings of the engine, e.g. `{spark.sql.shuffle.partitions: 8}`.
        packages: Maven coordinates added to the engine's class path.
        maven_repository: mirror to fetch the engine's jars from.
        java_home: Java 17 or 21 to run the engine on.
        engine_home: folder of the engine's state; projects that name one share its engine.
        start_timeout: seconds the engine may take to start.
        progress: show the progress of long statements; by default in a terminal.
    """

    database: str = "lake"
    schema: str = ""
    method: str = "embedded"
    warehouse: str = "lakehouse"
    keep_alive: int = field(default_factory=default_keep_alive)
    driver_memory: str = "2g"
    spark_conf: dict[str, Any] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)
    maven_repository: str | None = None
    java_home: str | None = None
    engine_home: str = ".iceberg_stream"
    start_timeout: int = 120
    progress: bool = True

    _ALIASES: ClassVar[dict[str, str]] = {
        "catalog": "database",
        "server_side_parameters": "spark_conf",
    }

    @property
    def type(self) -> str:
        return "iceberg_stream"

    @property
    def unique_field(self) -> str:
        return f"{self.method}/{self.database}"

    def _connection_keys(self) -> tuple[str, ...]:
        return ("method", "database", "schema", "warehouse", "keep_alive", "driver_memory")

    def connection_info(self, *, with_aliases: bool = False) -> Iterable[tuple[str, Any]]:
        """What `dbt debug` shows: the profile, then what runs where, with versions."""
        yield from super().connection_info(with_aliases=False)
        yield from versions(self.java_home)

    @classmethod
    def validate(cls, data: Any) -> None:
        """Check the profile's output before it is turned into an object.

        Raises:
            DbtRuntimeError: with one line for each fault.
        """
        faults = [*_unknown_keys(cls, data), *_bad_values(data)]
        if faults:
            lines = "\n".join(f"  - {fault}" for fault in faults)
            raise DbtRuntimeError(f"The profile of type iceberg_stream has faults:\n{lines}")
        super().validate(data)

    def warehouse_path(self, project_root: str | Path) -> Path:
        """The folder of tables and catalog, as an absolute path."""
        return (Path(project_root) / Path(self.warehouse).expanduser()).resolve()

    def engine_path(self, project_root: str | Path) -> Path:
        """The folder of the engine's state, as an absolute path."""
        return (Path(project_root) / Path(self.engine_home).expanduser()).resolve()


def versions(java_home: str | None) -> Iterable[tuple[str, str]]:
    """The parts of the embedded engine and their versions."""
    try:
        java = find_java(Path(java_home) if java_home else None)
        yield "java", f"{java.version} ({java.executable})"
    except EngineError as error:
        yield "java", str(error)
    for package in ("pyspark", "pyiceberg", "pyarrow"):
        yield package, version(package)
    yield "jars", ", ".join(DEFAULT_PACKAGES)


def _unknown_keys(cls: type[IcebergStreamCredentials], data: dict[str, Any]) -> list[str]:
    known = {f.name for f in fields(cls)} | set(cls._ALIASES) | {"type", "threads"}
    known.discard("_ALIASES")
    faults = []
    for key in sorted(set(data) - known):
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(sorted(known))}"
        faults.append(f"unknown key `{key}`: {hint}")
    return faults


def _bad_values(data: dict[str, Any]) -> list[str]:
    faults = []
    schema = data.get("schema")
    if not isinstance(schema, str) or not schema.strip():
        faults.append("`schema` is missing: the namespace that models are built into")
    method = data.get("method", "embedded")
    if method not in METHODS:
        faults.append(f"`method: {method}` is unknown: use {' or '.join(METHODS)}")
    database = data.get("database", "lake")
    if not isinstance(database, str) or not re.fullmatch(r"[A-Za-z_]\w*", database):
        faults.append(f"`database: {database}` is no catalog name: use letters, digits and _")
    if database == "spark_catalog":
        faults.append("`database: spark_catalog` is Spark's own catalog: choose another name")
    memory = data.get("driver_memory", "2g")
    if not isinstance(memory, str) or not MEMORY.match(memory):
        faults.append(f"`driver_memory: {memory}` is no size: write e.g. 2g or 1500m")
    for key in ("keep_alive", "start_timeout"):
        value = data.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            faults.append(f"`{key}: {value}` is no number of seconds")
    if not isinstance(data.get("spark_conf", {}), dict):
        faults.append("`spark_conf` must be a mapping of Spark settings to values")
    return faults
