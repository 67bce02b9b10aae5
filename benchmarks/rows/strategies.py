"""Snapshots, microbatch and delete+insert on large tables, against dbt-spark on the same server.

The time is what dbt counts for the node. dbt-spark has no delete+insert: its merge leaves the same
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.bench import Bench
from benchmarks.contenders import Contender, Files, Ours, WarmPeer, require_same_rows
from benchmarks.harness import Result, alternate

PROJECT = """\
name: rows
profile: bench
model-paths: [models]
snapshot-paths: [snapshots]
vars: {version: 0, rows: 1}
models: {+file_format: iceberg}
"""
# One percent of the rows changes with each version.
SOURCE = """\
{{{{ config(materialized='table', event_time='at') }}}}
select
  id, concat('customer ', id % 100000) as customer, cast(id % 10000 as double) / 8 as price,
  timestamp'2026-01-01' + make_interval(0, 0, 0, cast(id * 30 div {rows} as int)) as at,
  date_add(date'2026-01-01', cast(id * 30 div {rows} as int)) as day,
  concat('note ', hash(id)) as note,
  if(pmod(hash(id), 100) <= {{{{ var('version') }}}}, pmod(hash(id), 100), 0) as version,
  timestamp'2026-02-01' + make_interval(
    0, 0, 0, if(pmod(hash(id), 100) <= {{{{ var('version') }}}}, pmod(hash(id), 100), 0)
  ) as updated_at
from range({rows})
"""
SNAPSHOT = """\
snapshots:
  - name: history
    relation: ref('source')
    config:
      strategy: timestamp
      updated_at: updated_at
      unique_key: id
      file_format: iceberg
"""
BY_DAY = """\
{{ config(materialized='incremental', incremental_strategy='microbatch', event_time='at',
    batch_size='day', begin='2026-01-01', partition_by=['day'], unique_key='id') }}
select * from {{ ref('source') }}
"""
DELETE_INSERT = """\
{{ config(materialized='incremental', unique_key='id', incremental_strategy=
    'merge' if target.type == 'spark' else 'delete+insert') }}
select * from {{ ref('source') }}
{% if is_incremental() %}where version = {{ var('version') }}{% endif %}
"""


@dataclass(frozen=True)
class Case:
    """A project, the command that is timed, and what comes before it.

    Attributes:
        files: beside the source.
        build: what makes the large table.
        timed: the command that is timed.
    """

    files: Files
    build: tuple[str, ...]
    timed: tuple[str, ...]


def _days(first: str) -> tuple[str, ...]:
    return "--event-time-start", first, "--event-time-end", "2026-01-31"


CASES = {
    "snapshot": Case({"snapshots/history.yml": SNAPSHOT}, ("snapshot",), ("snapshot",)),
    "microbatch": Case(
        {"models/target.sql": BY_DAY},
        ("run", "-s", "target", *_days("2026-01-01")),
        ("run", "-s", "target", *_days("2026-01-29")),
    ),
    "delete_insert": Case(
        {"models/target.sql": DELETE_INSERT}, ("run", "-s", "target"), ("run", "-s", "target")
    ),
}


class Versions:
    """A project with both adapters, whose source changes between two rounds."""

    def __init__(self, bench: Bench, name: str, rows: int) -> None:
        case = CASES[name]
        files = {
            "dbt_project.yml": PROJECT,
            "models/source.sql": SOURCE.format(rows=rows),
            **case.files,
        }
        root = bench.folder / f"rows_{name}"
        self.ours = Ours(root / "ours", files, bench.engine)
        self.ours.dbt("debug")
        self.peer = WarmPeer(root / "peer", files, bench.engine)
        self._case, self._version = case, 0
        self.change()
        self._each(*case.build)
        # The first run of a kind is not timed: the JVM compiles.
        self.change()
        self._each(*case.timed)

    def change(self) -> None:
        """Let one percent of the source's rows be of the next version."""
        self._version += 1
        self._each("run", "-s", "source")

    def seconds(self, contender: Contender) -> float:
        contender.dbt(*self._case.timed, *self._variables())
        return contender.node_seconds()

    def _each(self, *command: str) -> None:
        for contender in (self.ours, self.peer):
            contender.dbt(*command, *self._variables())

    def _variables(self) -> tuple[str, ...]:
        return "--vars", f"{{version: {self._version}}}"


def strategy(bench: Bench, name: str, rows: int) -> list[Result]:
    """Time a strategy with one percent changed, and a snapshot with nothing changed, too."""
    rows = bench.size(rows)
    versions = Versions(bench, name, rows)
    results = [_result(bench, versions, name, rows, versions.change)]
    if name == "snapshot":
        results.append(_result(bench, versions, f"{name}_unchanged", rows, lambda: None))
    require_same_rows([versions.ours, versions.peer])
    return results


def _result(
    bench: Bench, versions: Versions, name: str, rows: int, before: Callable[[], None]
) -> Result:
    before()
    seconds = alternate(
        {
            "ours": partial(versions.seconds, versions.ours),
            "peer": partial(versions.seconds, versions.peer),
        },
        bench.runs(3),
        before,
    )
    note = f"{rows:,} rows of 8 columns; seconds of the node."
    peer = versions.peer.label
    return Result.of(f"{name}_1m", peer, seconds["ours"], seconds["peer"], 2, note)
