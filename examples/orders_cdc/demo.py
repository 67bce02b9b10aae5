"""Stream a shop that keeps changing through Kafka into Iceberg tables, and compare both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import click
import pytest

from dbt.adapters.iceberg_stream.api import open_catalog
from examples.orders_cdc.encodings import Avro, Json
from examples.orders_cdc.reader import COLUMNS, Reader
from examples.orders_cdc.screen import Screen, metrics, states
from examples.orders_cdc.shop_changes import KEYS, Shop, create_topics, feed
from tests.servers.kafka import kafka_server
from tests.servers.schema_registry import schema_registry

HERE = Path(__file__).resolve().parent
DATA = HERE / ".data"
LOG = DATA / "service.log"
PROGRAMS = Path(sys.executable).parent
PLACE = ["--project-dir", str(HERE), "--profiles-dir", str(HERE)]
# For each table of the shop: its model, the time of a row's change, a filter for current rows.
MODELS = {
    "customers": ("customers_history", "__START_AT", "__END_AT is null"),
    "orders": ("orders", "updated_at", "true"),
    "order_items": ("order_items", "updated_at", "true"),
}
HEADER = ("table", "shop has", "table has", "changes", "commits", "waiting", "behind", "state")
START_SECONDS = 120


@click.command(help=__doc__)
@click.option("--rate", default=50.0, show_default=True, help="Changes a second.")
@click.option("--seconds", default=30.0, show_default=True, help="How long the shop is open.")
@click.option(
    "--encoding",
    type=click.Choice(["avro", "json"]),
    default="avro",
    show_default=True,
    help="Of the messages; Avro has a schema registry.",
)
def main(rate: float, seconds: float, encoding: str) -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    shutil.rmtree(DATA, ignore_errors=True)
    try:
        with ExitStack() as stack:
            print("Starting Kafka …")
            kafka, registry = stack.enter_context(kafka_server(DATA / "kafka")), ""
            if encoding == "avro":
                print("Starting a schema registry …")
                registry = stack.enter_context(schema_registry(DATA / "registry")).url
            lake = stack.enter_context(closing(open_catalog(HERE, HERE)))
            create_topics(kafka)
            same = _run(Shop(), kafka, registry, Reader(lake), rate, seconds)
    except pytest.skip.Exception as skipped:
        sys.exit(str(skipped))
    finally:
        _call("iceberg-stream", "stop", "--project-dir", str(HERE), "--engine-home", ".data/engine")
    sys.exit(0 if same else 1)


def _run(
    shop: Shop, kafka: str, registry: str, reader: Reader, rate: float, seconds: float
) -> bool:
    environment = os.environ | {
        "KAFKA": kafka,
        "SCHEMA_REGISTRY": registry,
        "ENCODING": "avro" if registry else "json",
        "DBT_TARGET_PATH": str(DATA / "target"),
        "DBT_LOG_PATH": str(DATA / "logs"),
        "DBT_USE_COLORS": str(sys.stdout.isatty()),
    }
    # The streams read the columns from the schemas, which this registers.
    encoding = Avro(registry) if registry else Json()
    with ThreadPoolExecutor(1) as pool:
        print("Starting the streams: iceberg-stream run …")
        with _service(environment) as (service, address):
            _wait(service, address)
            closed = threading.Event()
            feeding = pool.submit(feed, shop, kafka, encoding, rate, closed)
            try:
                _watch(shop, reader, address, seconds)
            finally:
                closed.set()
            print(f"\nThe shop has closed after {feeding.result():,} changes.")
            service.terminate()
            print(f"The streams were told to stop; exit code {service.wait(START_SECONDS)}.")
    print("\ndbt build takes in what is left, builds the other models and tests all of them:\n")
    built = _call("dbt", "build", *PLACE, environment=environment) == 0
    return _compare(shop, reader) and built


@contextmanager
def _service(environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `iceberg-stream run`; return the process and the address of its metrics."""
    command = [str(PROGRAMS / "iceberg-stream"), "run", *PLACE]
    with LOG.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, text=True, env=environment)
    try:
        until = time.monotonic() + START_SECONDS
        while "Health and metrics at " not in LOG.read_text():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"The streams did not start:\n{LOG.read_text()}")
            time.sleep(0.2)
        yield process, LOG.read_text().split("Health and metrics at ")[1].split()[0]
    finally:
        process.kill()
        process.wait()


def _wait(service: subprocess.Popen[str], address: str) -> None:
    """Wait until all streams have found their topics empty."""
    until = time.monotonic() + START_SECONDS
    while list(states(address).values()) != ["idle"] * len(MODELS):
        if service.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"The streams do not run:\n{LOG.read_text()}")
        time.sleep(0.2)


def _watch(shop: Shop, reader: Reader, address: str, seconds: float) -> None:
    """Show how far the tables are behind the shop."""
    screen, began = Screen(), time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        counted, doing = metrics(address), states(address)
        rows = [_line(shop, reader, table, counted, doing) for table in KEYS]
        screen.draw(HEADER, rows, f"After {passed:.0f} of {seconds:.0f} s:")
        time.sleep(min(1.0 if screen.live else 5.0, max(0.0, began + seconds - time.monotonic())))


def _line(
    shop: Shop,
    reader: Reader,
    table: str,
    counted: dict[tuple[str, str], float],
    doing: dict[str, str],
) -> list[str]:
    model, changed_at, today = MODELS[table]
    in_shop, newest = len(shop.tables[table]), shop.newest[table]
    asked = f"count(*) filter ({today}), epoch_ms(max({changed_at}))"
    ((rows, last),) = reader.rows(model, asked) or [(0, None)]
    numbers = (counted.get((name, model), 0) for name in ("changes", "commits", "lag"))
    behind = "" if last is None else f"{max(0, newest - last) / 1000:.1f} s"
    counts = [f"{number:,.0f}" for number in (in_shop, rows, *numbers)]
    return [model, *counts, behind, doing.get(model, "")]


def _compare(shop: Shop, reader: Reader) -> bool:
    """Print whether the tables contain the shop's rows, as DuckDB reads them."""
    print("\nThe tables as DuckDB reads them, and the shop:\n")
    same = True
    for table, expected in shop.rows().items():
        actual = sorted(reader.rows(table, COLUMNS[table]), key=repr)
        if actual == expected:
            print(f"  {table:18} {len(actual):6,} rows, the same as in the shop")
            continue
        same = False
        lacking, odd = set(expected) - set(actual), set(actual) - set(expected)
        print(
            f"  {table:18} DIFFERS: {len(actual):,} rows, {len(expected):,} in the shop; "
            f"{len(lacking):,} are missing, {len(odd):,} should not be there"
        )
        for what, some in (("missing", lacking), ("wrong", odd)):
            for row in sorted(some, key=repr)[:3]:
                print(f"      {what}: {row}")
    return same


def _call(program: str, *arguments: str, environment: dict[str, str] | None = None) -> int:
    return subprocess.run([str(PROGRAMS / program), *arguments], env=environment).returncode


if __name__ == "__main__":
    main()
