"""An incremental model on a large table of each layout, against dbt-spark on the same warm server.

The time is what dbt counts for the node: the model's query and its merge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.bench import Bench
from benchmarks.contenders import Contender, Files, Ours, WarmPeer
from benchmarks.harness import BenchmarkError, Result, alternate

DAYS = 30
PROJECT = """\
name: rows
profile: bench
model-paths: [models]
"""
# `at` moves with the id, so that the newest days have the highest ids.
MODEL = """\
{{{{ config(
    materialized='incremental', incremental_strategy='merge', unique_key={keys},
    file_format='iceberg', {options}
) }}}}
select
  id, {key}concat('customer ', id % 100000) as customer, cast(id % 10000 as double) / 8 as price,
  cast(id % 97 as int) as quantity,
  date_add(date'2026-01-01', cast(id * {days} div {rows} as int)) as day,
  concat('note ', hash(id)) as note, {{{{ var('version') }}}} as version
from range({rows})
{{% if is_incremental() %}}where {{{{ var('where') }}}}{{% endif %}}
"""
# One percent of the rows, or ten, everywhere or in the newest days.
INCREMENTS = {
    "scattered": "pmod(hash(id), 100) = {n}",
    "newest": "id >= {rows} - {rows} div 100",
    "tenth": "pmod(hash(id), 10) = {n}",
}


@dataclass(frozen=True)
class Layout:
    """A layout as the options of a model, and what is done to the table before it is merged."""

    options: str = ""
    properties: str = "'format-version': '2'"
    keys: str = "'id'"
    key: str = ""
    before: tuple[str, ...] = ()
    aim: float = 3.0
    days: int = DAYS

    def model(self, rows: int) -> str:
        options = f"tblproperties={{{self.properties}}}" + (
            f", {self.options}" if self.options else ""
        )
        return MODEL.format(
            keys=self.keys, key=self.key, options=options, rows=rows, days=self.days
        )


BY_DAY = "partition_by=['day']"
NEWEST = "incremental_predicates=[\"DBT_INTERNAL_DEST.day >= date'2026-01-30'\"]"
VERSION_3 = "'format-version': '3'"
ON_READ = "'format-version': '2', 'write.merge.mode': 'merge-on-read'"
LAYOUTS = {
    "flat": Layout(),
    "by_day": Layout(BY_DAY),
    "by_day_predicates": Layout(f"{BY_DAY}, {NEWEST}", aim=1.5),
    "bucket": Layout("partition_by=['bucket(8, id)']"),
    "month_and_bucket": Layout("partition_by=['month(day)', 'bucket(4, id)']", days=180),
    "string_key": Layout(keys="'text_key'", key="concat('key ', id) as text_key, "),
    "version_3": Layout(properties=VERSION_3),
    "merge_on_read": Layout(properties=ON_READ),
    "old_deletes": Layout(
        properties="'format-version': '2', 'write.delete.mode': 'merge-on-read'",
        before=("delete from {table} where id % 1000 = 1",),
    ),
    "composite_key": Layout(
        keys="['id', 'text_key']", key="concat('key ', id % 1000) as text_key, "
    ),
}


class Merged:
    """The same model with both adapters, whose next run merges an increment."""

    def __init__(self, ours: Contender, peer: Contender, layout: Layout, rows: int) -> None:
        self.ours, self.peer, self.rows, self._version = ours, peer, rows, 0
        for contender in (ours, peer):
            contender.dbt("run", "--vars", "{version: 0, where: 'true'}")
            for statement in layout.before:
                self._run(contender, statement)

    def _run(self, contender: Contender, statement: str) -> None:
        sql = statement.format(table="bench.orders").replace("'", "''")
        contender.dbt(
            "show",
            "--inline",
            f"{{% do run_query('{sql}') %}} select 1",
            "--vars",
            "{version: 0, where: 'true'}",
        )

    def next_version(self) -> None:
        self._version += 1

    def seconds(self, contender: Contender, increment: str) -> float:
        """Merge the next version of an increment; return the seconds of the node."""
        where = INCREMENTS[increment].format(rows=self.rows, n=self._version % 10)
        contender.dbt("run", "--vars", f'{{version: {self._version}, where: "{where}"}}')
        return contender.node_seconds()

    def unchanged(self, contender: Contender, increment: str) -> float:
        """Merge the same rows once more."""
        return self.seconds(contender, increment)

    def check(self) -> None:
        """Check that both have the same rows.

        Raises:
            BenchmarkError: they differ.
        """
        query = (
            "select count(*) as n, count(distinct id) as ids, sum(version) as v, "
            "sum(hash(id, price, day, note)) as h from bench.orders"
        )
        shown = [self._show(contender, query) for contender in (self.ours, self.peer)]
        if shown[0] != shown[1]:
            raise BenchmarkError(f"The tables differ: {shown[0]} and {shown[1]}")

    def read(self, contender: Contender) -> float:
        """Return the seconds of a query that reads all rows."""
        return contender.seconds(
            "show",
            "--inline",
            "select max(note), sum(price) from bench.orders",
            "--vars",
            "{version: 0, where: 'true'}",
        )

    def _show(self, contender: Contender, query: str) -> list[str]:
        output = contender.dbt(
            "show", "--inline", query, "--vars", "{version: 0, where: 'true'}"
        ).output
        return [line for line in output.splitlines() if line.startswith("|")]


def merges(bench: Bench, layout: str, rows: int, label: str) -> list[Result]:
    """Merge into a table of a layout with an engine on this machine."""
    files, root = project(layout, bench.size(rows)), bench.folder / f"rows_{layout}_{label}"
    ours = Ours(root / "ours", files, bench.engine)
    ours.dbt("debug")
    peer = WarmPeer(root / "peer", files, bench.engine)
    return compare(bench, ours, peer, layout, bench.size(rows), label)


def project(layout: str, rows: int) -> Files:
    """Return the files of a project with one model.

    Args:
        layout: of its table.
        rows: of its table.
    """
    return {"dbt_project.yml": PROJECT, "models/orders.sql": LAYOUTS[layout].model(rows)}


def compare(
    bench: Bench,
    ours: Contender,
    peer: Contender,
    layout: str,
    rows: int,
    label: str,
    aim: float | None = None,
) -> list[Result]:
    """Merge one percent scattered, one percent of the newest, a tenth, and what has not changed.

    Args:
        bench: the run.
        ours, peer: the same project with each adapter.
        layout: of the table.
        rows: of the table.
        label: of the size, for the names of the results.
        aim: of all merges; None for those of the layout and of each kind.
    """
    of = LAYOUTS[layout]
    merged = Merged(ours, peer, of, rows)
    results = []
    kinds: Sequence[str] = ("newest",) if "predicates" in layout else tuple(INCREMENTS)
    for kind in kinds:
        of_kind = aim or (1.5 if kind == "newest" else of.aim)
        results.append(_result(bench, merged, f"{layout}_{label}_{kind}", kind, of_kind))
    name = f"{layout}_{label}_unchanged"
    unchanged = _result(bench, merged, name, kinds[0], aim or 10.0, changes=False)
    merged.check()
    return [*results, unchanged, _read(bench, merged, f"{layout}_{label}_read")]


def _read(bench: Bench, merged: Merged, name: str) -> Result:
    """Read the whole table after all these merges, at least three times: a single read varies."""
    seconds = alternate(
        {
            "ours": partial(merged.read, merged.ours),
            "peer": partial(merged.read, merged.peer),
        },
        1 if bench.small else max(3, bench.runs()),
        lambda: None,
    )
    note = "Whole command, after the merges above."
    return Result.of(name, merged.peer.label, seconds["ours"], seconds["peer"], 0.83, note)


def _result(
    bench: Bench, merged: Merged, name: str, kind: str, aim: float, changes: bool = True
) -> Result:
    def measure(contender: Contender) -> Callable[[], float]:
        return partial(merged.seconds, contender, kind)

    merged.next_version()
    for contender in (merged.ours, merged.peer):
        # The first run of a kind is not timed: the JVM compiles.
        merged.seconds(contender, kind)
    if changes:
        merged.next_version()
    seconds = alternate(
        {"ours": measure(merged.ours), "peer": measure(merged.peer)},
        bench.runs(3),
        merged.next_version if changes else lambda: None,
    )
    note = f"{merged.rows:,} rows of 8 columns; seconds of the node."
    return Result.of(name, merged.peer.label, seconds["ours"], seconds["peer"], aim, note)
