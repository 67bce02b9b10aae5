from __future__ import annotations

from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.shell.commands import Commands
from dbt.adapters.iceberg_stream.shell.completion import complete
from dbt.adapters.iceberg_stream.shell.names import NameReader, Names, read_names

NAMES = Names(
    ("customers", "orders", "orders_daily"),
    {"tag": ("daily", "hourly"), "source": ("raw", "raw.clicks"), "state": ("modified", "new")},
    ("nightly",),
    ("grant_all",),
)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("com", ["compile"]),
        ("dbt com", ["dbt compile"]),
        ("ex", ["exit"]),
        ("help sn", ["help snapshot"]),
        ("ini", []),
        ("docs ", ["docs generate", "docs serve"]),
        ("source fr", ["source freshness"]),
        ("run --full", ["run --full-refresh"]),
        ("run --fail-fast --full", ["run --fail-fast --full-refresh"]),
        ("--quiet run --full", ["--quiet run --full-refresh"]),
        ("test --store", ["test --store-failures"]),
        ("compile --no-intro", ["compile --no-introspect"]),
        ("nothing --full", []),
        ("run -s or", ["run -s orders", "run -s orders_daily"]),
        ("dbt run --select cu", ["dbt run --select customers"]),
        ("run -m cu", ["run -m customers"]),
        ("run -s customers or", ["run -s customers orders", "run -s customers orders_daily"]),
        ("build --exclude cu", ["build --exclude customers"]),
        ("run -s +cu", ["run -s +customers"]),
        ("run -s 2+cu", ["run -s 2+customers"]),
        ("run -s @cu", ["run -s @customers"]),
        ("run -s tag:daily,cu", ["run -s tag:daily,customers"]),
        ("run -s ta", ["run -s tag:"]),
        ("run -s tag:h", ["run -s tag:hourly"]),
        ("run -s +source:raw.", ["run -s +source:raw.clicks"]),
        ("run -s state:", ["run -s state:modified", "run -s state:new"]),
        ("run --selector n", ["run --selector nightly"]),
        ("run --full-refresh cu", []),
        ("run --threads 4 cu", []),
        ("ls --output j", ["ls --output json"]),
        ("run-operation g", ["run-operation grant_all"]),
        ("run-operation grant_all g", []),
    ],
)
def test_what_can_follow(line: str, completed: list[str]) -> None:
    completions = complete(line, NAMES)
    assert [line[: completions.start] + word for word in completions.words] == completed


def test_each_command_and_each_option_of_one() -> None:
    assert {"run", "build", "test", "ls", "seed", "help", "quit"} <= set(complete("", NAMES).words)
    assert {"--select", "-s", "--vars", "--target"} <= set(complete("run -", NAMES).words)


def test_names_of_a_project(folder: Path) -> None:
    path = folder / "target" / "manifest.json"
    reader = NameReader(lambda: path)
    assert reader.read().nodes == ()
    assert Commands().run(["--quiet", "parse"]) == 0
    names = reader.read()
    assert names.nodes == ("customers", "orders", "unique_orders_id")
    assert names.methods["tag"] == ("daily",)
    assert names.methods["source"] == ("raw", "raw.clicks")
    assert "models/orders.sql" in names.methods["path"]
    assert names.methods["config.materialized"] == ("test", "view")
    assert names.macros == ()
    # What a writer has not finished.
    path.write_text(path.read_text()[:-10])
    assert reader.read() == names


def test_names_of_other_resources() -> None:
    names = read_names(
        {
            "nodes": {},
            "sources": {},
            "macros": {"macro.p.m": {"name": "m", "package_name": "p"}},
            "exposures": {"exposure.p.e": {"name": "e"}},
            "selectors": {"nightly": {}},
        }
    )
    assert (names.macros, names.selectors) == (("m",), ("nightly",))
    assert names.methods["exposure"] == ("e",)
