"""A full refresh with a staged table that is killed, or refused, at any write to the catalog.

Readers see the old rows or the new ones, the next command works, and no staged table is left.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.stream.batches import runners
from tests.integration.stream_bed import Bed
from tests.integration.tables import LATER
from tests.integration.writers import open_catalog
from tests.lost_files import assert_nothing_lost

WRITES = ("commit", "register", "unregister")
# The format version and the options of each.
STREAMS: dict[str, tuple[int, dict[str, Any]]] = {
    "copy_on_write": (3, {"delete_encoding": "copy_on_write"}),
    "soft_deletes": (2, {"soft_deletes": "gone_at", "extra": ", gone_at timestamp"}),
    "nulls": (3, {"ignore_null_updates": True}),
    "nulls by equality": (2, {"ignore_null_updates": True, "delete_encoding": "equality"}),
    "versions": (
        2,
        {
            "sequence_by": ("at",),
            "scd_type": 2,
            "extra": ", __START_AT bigint, __END_AT bigint",
        },
    ),
}
MakeBed = Callable[[str], Bed]


@pytest.fixture
def bed(place: dict[str, str], engine_home: Path, tmp_path: Path) -> Iterator[MakeBed]:
    if "folder" in place:
        settings = spark_settings("lake", Path(place["folder"]))
    else:
        properties = {"type": "rest", "uri": place["uri"]}
        settings = CatalogSettings("lake", properties).spark(place["token"])
    engine = EmbeddedEngine(EngineSettings(engine_home, keep_alive=120))
    with closing(open_catalog(place)) as lake:
        lake.create_namespace("s")
        with closing(Session(engine.endpoint(), settings)) as spark:

            def make(name: str) -> Bed:
                version, options = STREAMS[name]
                options = {**options, "deletes": "op = 'd'", "batch_rows": 1}
                extra = options.pop("extra", "")
                # A commit that is killed is not tried again.
                layout = {"format-version": str(version), "commit.retry.num-retries": "0"}
                listed = ", ".join(f"'{key}' = '{value}'" for key, value in layout.items())
                properties = f"tblproperties ({listed})"
                folder, runner = tmp_path / "landing", runners.in_process
                return Bed(lake, spark, folder, runner, options, extra, properties)

            yield make
    engine.release()


@dataclass
class Fault:
    """Raises an error at one write to the catalog.

    Attributes:
        at: how many writes go before it.
        kind: `refused`; or `killed before` or `killed after`, which all later writes are, too.
        writes: the writes so far.
    """

    at: int
    kind: str
    writes: list[str] = field(default_factory=list)

    @property
    def has_happened(self) -> bool:
        return len(self.writes) > self.at

    def wrap(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*arguments: Any, **named: Any) -> Any:
            if self.has_happened and self.kind != "refused":
                raise CommitStateUnknown("fault")
            is_late = self.has_happened
            self.writes += [] if is_late else [name]
            fails = self.has_happened and not is_late
            if fails and self.kind == "refused":
                raise CatalogError("fault")
            if fails and self.kind == "killed before":
                raise CommitStateUnknown("fault")
            result = write(*arguments, **named)
            if fails:
                raise CommitStateUnknown("fault")
            return result

        return faulty


def refresh_with(fault: Fault, made: Bed) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in WRITES:
            patch.setattr(IcebergCatalog, name, fault.wrap(name, getattr(IcebergCatalog, name)))
        try:
            made.drain(refresh=True)
        except DbtRuntimeError as error:
            assert "fault" in str(error), error


def orphans(made: Bed) -> set[str]:
    table = made.lake.load(("s", made.name))
    assert table is not None
    return {orphan.location for orphan in unreferenced_files(table, LATER)}


def whole(made: Bed) -> list[Any]:
    table = made.lake.load(("s", made.name))
    assert table is not None
    findings = check_table(table, data=True).findings
    assert [finding for finding in findings if finding.severity != "note"] == []
    return made.rows(order="id, at")


def tables(made: Bed) -> list[str]:
    return [name for name, _ in made.lake.relations("s") if name.startswith(made.name)]


def prepare(made: Bed) -> list[Any]:
    """Land changes of some batches, of rows of earlier ones; return the rows that they make."""
    for number in range(3):
        changes = [{"id": n, "a": "x", "b": 1, "at": n, "op": "c"} for n in range(4)]
        if number:
            changes = [
                {"id": number, "a": f"y{number}", "b": None, "at": 10 * number, "op": "u"},
                {"id": 3 - number, "a": None, "b": number, "at": 10 * number + 1, "op": "u"},
                {
                    "id": 4,
                    "a": "z",
                    "b": 1,
                    "at": 10 * number + 2,
                    "op": "d" if number > 1 else "c",
                },
            ]
        made.land(changes)
    made.drain(refresh=True)
    return whole(made)


def check_fault(made: Bed, truth: list[Any], refresh: bool, *faults: Fault) -> None:
    """Refresh with one fault after the other, then run the next command and the one after it."""
    made.spark.run(f"insert into s.{made.name} (id, a, b, at) values (9, 'foreign', 9, 9)")
    allowed, before = [truth, [*truth, (9, "foreign", 9, 9)]], orphans(made)
    for fault in faults:
        refresh_with(fault, made)
        assert whole(made) in allowed
    if faults[0].kind == "refused" and faults[0].writes[-1] != "unregister" and len(faults) == 1:
        assert (tables(made), orphans(made)) == ([made.name], before)
    for refreshes in (refresh, False):
        made.drain(refreshes)
        assert tables(made) == [made.name]
        assert whole(made) in (allowed[:1] if refreshes else allowed)
    made.spark.run(f"delete from s.{made.name} where id = 9")
    assert whole(made) == truth
    assert_nothing_lost(made.lake, ["s"])


KINDS = ("refused", "killed before", "killed after")


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.slow
def test_the_last_commit_is_refused(bed: MakeBed) -> None:
    made = bed("versions")
    fault = Fault(6, "refused")
    check_fault(made, prepare(made), True, fault)
    assert fault.writes == ["commit", "unregister", "register", *["commit"] * 4]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", STREAMS)
def test_a_fault_at_any_write(bed: MakeBed, name: str) -> None:
    made = bed(name)
    truth = prepare(made)
    for at, kind in itertools.product(range(40), KINDS):
        fault = Fault(at, kind)
        check_fault(made, truth, bool(at % 2), fault)
        if not fault.has_happened:
            return
    raise AssertionError("a refresh writes less often")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", STREAMS)
def test_faults_one_after_the_other(bed: MakeBed, name: str) -> None:
    made, rng = bed(name), random.Random(name)
    truth = prepare(made)
    for _ in range(12):
        faults = [Fault(rng.randrange(8), rng.choice(KINDS)) for _ in range(rng.choice([2, 3]))]
        check_fault(made, truth, rng.random() < 0.5, *faults)
