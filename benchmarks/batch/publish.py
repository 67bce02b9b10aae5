"""What `publish: atomic` costs over publishing each model at once."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks import projects
from benchmarks.bench import Bench
from benchmarks.contenders import CATALOG, THREADS, Files, Ours, require_same_rows
from benchmarks.harness import BenchmarkError, Result, alternate
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.sources import LiteralToken
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from tests.servers.rest_catalog import RestCatalog, rest_catalog

PEER = "iceberg_stream, publish: immediately"
PUBLISHED = re.compile(r"Published the build .* in ([\d.]+) s")


class Immediate(Ours):
    """Our adapter, on a REST catalog if there is one."""

    label = PEER

    def __init__(self, root: Path, files: Files, engine: Path, rest: RestCatalog | None) -> None:
        self._rest = rest
        super().__init__(root, files, engine)

    def profile(self) -> dict[str, Any]:
        profile = super().profile()
        if self._rest is not None:
            del profile["warehouse"]
            profile["catalog_properties"] = {"uri": self._rest.uri}
            profile["token"] = self._rest.token("bench")
        return profile

    def lake(self) -> IcebergCatalog:
        if self._rest is None:
            return super().lake()
        settings = CatalogSettings(CATALOG, {"type": "rest", "uri": self._rest.uri})
        identity = Identity(LiteralToken(self._rest.token("bench")))
        return IcebergCatalog(CATALOG, RemoteBackend(settings, identity))


class Atomic(Immediate):
    """The same with `publish: atomic`."""

    label = "iceberg_stream, publish: atomic"

    def __init__(self, root: Path, files: Files, engine: Path, rest: RestCatalog | None) -> None:
        self.publications: list[float] = []
        super().__init__(root, files, engine, rest)

    def environment(self) -> dict[str, str]:
        return {"ICEBERG_STREAM_PUBLISH": "atomic"}

    def run(self) -> float:
        done = self.dbt("run")
        published = PUBLISHED.search(done.output)
        if published is None:
            raise BenchmarkError(f"Nothing was published:\n{done.output[-2000:]}")
        self.publications.append(float(published.group(1)))
        return done.seconds


def tables(bench: Bench) -> list[Result]:
    """A hundred tables that exist already, with a SQLite and with a REST catalog."""
    results = _compare(bench, "publish_100", (None, None))
    folder = bench.folder / "publish_rest"
    with rest_catalog(folder / "1") as one, rest_catalog(folder / "2") as other:
        return [*results, *_compare(bench, "publish_100_rest", (one, other))]


def _compare(
    bench: Bench, name: str, servers: tuple[RestCatalog | None, RestCatalog | None]
) -> list[Result]:
    files, folder = projects.tables(bench.size(100)), bench.folder / name
    immediate = Immediate(folder / "immediate", files, bench.engine, servers[0])
    atomic = Atomic(folder / "atomic", files, bench.engine, servers[1])
    for contender in (immediate, atomic):
        contender.dbt("run")
    seconds = alternate(
        {"atomic": atomic.run, "immediately": lambda: immediate.seconds("run")},
        bench.runs(3),
        lambda: require_same_rows([immediate, atomic]),
    )
    note = (
        f"Whole command at {THREADS} threads; the publication itself took "
        f"{statistics.median(atomic.publications):.1f} s."
    )
    return [Result.of(name, PEER, seconds["atomic"], seconds["immediately"], 0.87, note)]
