"""A day of a scheduler: jobs that end well, jobs that fail, and what all of them leave behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import psutil
import pytest
from pyiceberg.catalog.rest import RestCatalog as Reader

from dbt.adapters.iceberg_stream.engines.embedded import status, stop
from tests.integration.jobs import BROKEN, MENDED, Jobs
from tests.integration.leaks import command_lines_to, leaks, write_spark_ui
from tests.servers.ports import free_port
from tests.servers.rest_catalog import RestCatalog
from tests.servers.token_endpoint import TokenEndpoint, token_endpoint

SOUND = ("--exclude", "tag:broken")
DEBUG = ("--debug", "--log-level", "debug")
MEMBERS = [
    {"id": 1, "name": "ADA", "points": Decimal("1.50"), "joined": date(2020, 1, 1)},
    {"id": 2, "name": "GRACE", "points": Decimal("3.00"), "joined": date(2020, 1, 2)},
]


@pytest.fixture(scope="module")
def tokens(catalog: RestCatalog) -> dict[str, str]:
    """Of two writers, a reader, and one whose time is over."""
    lasting = {who: catalog.token(who) for who in ("wanda", "dora")}
    return lasting | {
        "rita": catalog.token("rita", "reader"),
        "otto": catalog.token("otto", seconds=-60),
    }


@pytest.fixture(scope="module")
def endpoint(catalog: RestCatalog) -> Iterator[TokenEndpoint]:
    with token_endpoint("the-secret-of-sven", catalog.token) as running:
        yield running


@pytest.fixture(scope="module")
def jobs(
    tmp_path_factory: pytest.TempPathFactory,
    catalog: RestCatalog,
    endpoint: TokenEndpoint,
    tokens: dict[str, str],
) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("jobs")
    login = tmp_path_factory.mktemp("login") / "token"
    login.write_text(tokens["dora"])
    (folder / "events").mkdir()
    variables = {
        "JOB_TARGET": "prod",
        "JOB_SCHEMA": "shop",
        "JOB_DEV_SCHEMA": "dora_shop",
        "JOB_THREADS": "2",
        "JOB_ENGINE": str(folder / "engine"),
        "JOB_KEEP_ALIVE": "120",
        "JOB_CATALOG": catalog.uri,
        "JOB_UI_PORT": str(free_port()),
        "JOB_EVENTS": (folder / "events").as_uri(),
        "JOB_TOKEN_COMMAND": f"cat {login}",
        "JOB_TOKEN_URI": endpoint.uri,
        "JOB_CLIENT": "sven",
        "DBT_ENV_SECRET_TOKEN": tokens["wanda"],
        "DBT_ENV_SECRET_CLIENT": endpoint.secret,
        "DBT_ENV_SECRET_PROXY": "the-key-of-the-proxy",
    }
    made = Jobs(folder, variables)
    made.write_project()
    with command_lines_to(folder / "ps.txt"):
        yield made
    stop(folder / "engine")


@pytest.fixture(scope="module")
def reader(catalog: RestCatalog, tokens: dict[str, str]) -> Reader:
    """Somebody who reads the lake without dbt and Spark."""
    return Reader("lake", uri=catalog.uri, token=tokens["rita"])


def rows(reader: Reader, table: str) -> list[dict[str, Any]]:
    actual = reader.load_table(table).scan().to_arrow().to_pylist()
    return sorted(actual, key=lambda row: row["id"])


def test_a_build(jobs: Jobs, reader: Reader) -> None:
    installed = jobs.run("deps")
    assert installed.code == 0, installed.output
    built = jobs.run("build", *SOUND)
    assert built.code == 0, built.output
    assert "\r" not in built.output
    assert rows(reader, "shop.members") == MEMBERS

    results = {r["unique_id"]: r for r in built.artifact("run_results")["results"]}
    response = results["model.job.members"]["adapter_response"]
    snapshot = reader.load_table("shop.members").current_snapshot()
    assert snapshot is not None
    assert response["snapshot_id"] == snapshot.snapshot_id
    assert (response["code"], response["rows_inserted"]) == ("CREATE", 2)
    manifest = built.artifact("manifest")
    assert manifest["metadata"]["adapter_type"] == "iceberg_stream"
    assert set(results) <= {*manifest["nodes"], "operation.job.job-on-run-start-0"}
    assert manifest["nodes"]["model.job.members"]["relation_name"] == "`lake`.`shop`.`members`"


def test_the_docs(jobs: Jobs) -> None:
    written = jobs.run("docs", "generate")
    assert written.code == 0, written.output
    nodes = written.artifact("catalog")["nodes"]
    assert nodes["model.job.looked_at"]["metadata"]["type"] == "view"
    members = nodes["model.job.members"]
    types = {name: column["type"] for name, column in members["columns"].items()}
    assert types == {"id": "bigint", "name": "string", "points": "decimal(10,2)", "joined": "date"}
    assert list(nodes["model.job.looked_at"]["columns"]) == ["name", "points"]


def test_stale_sources_fail_the_job(jobs: Jobs) -> None:
    checked = jobs.run("source", "freshness")
    assert checked.code == 1
    actual = {r["unique_id"]: r["status"] for r in checked.artifact("sources")["results"]}
    assert actual == {"source.job.raw.people": "pass", "source.job.raw.joined": "error"}


def test_two_jobs_at_once_end_well_or_one_says_why(jobs: Jobs, reader: Reader) -> None:
    running = [jobs.start("build", *SOUND, job=name) for name in ("hourly", "daily")]
    ended = [job.wait() for job in running]
    assert 0 in [done.code for done in ended], ended
    for done in ended:
        assert done.code == 0 or "Another writer" in done.output, done.output
    assert rows(reader, "shop.members") == MEMBERS
    assert [row["name"] for row in rows(reader, "shop.merged")] == ["ADA", "GRACE"]


def test_retry_runs_what_failed(jobs: Jobs) -> None:
    model = jobs.folder / "project" / "models" / "fragile.sql"
    model.write_text(BROKEN)
    failed = jobs.run("run", "--select", "members", "fragile+", *SOUND)
    assert failed.code == 1
    assert "no_such_column" in failed.output
    expected = {"members": "success", "fragile": "error", "after_fragile": "skipped"}
    assert failed.statuses().items() >= expected.items()
    model.write_text(MENDED)
    mended = jobs.run("retry")
    assert mended.code == 0, mended.output
    hook = {"job-on-run-start-0"}
    assert mended.statuses().keys() - hook == {"fragile", "after_fragile"}


def test_another_target_is_another_user(jobs: Jobs, catalog: RestCatalog, reader: Reader) -> None:
    before = reader.load_table("shop.members").metadata
    built = jobs.run("build", "--target", "dev", "--select", "people", "members", job="dev")
    assert built.code == 0, built.output
    assert rows(reader, "dora_shop.members") == MEMBERS
    assert reader.load_table("shop.members").metadata == before
    snapshot = reader.load_table("dora_shop.members").current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary["iceberg-stream.principal"] == "dora"
    touched = {path for who, _, path, _ in catalog.requests() if who == "dora"}
    assert not [path for path in touched if "/namespaces/shop" in path]


def test_failures_say_so(jobs: Jobs, tokens: dict[str, str]) -> None:
    """All at once, each with all that dbt can log."""
    members = (*DEBUG, "run", "--select", "members")
    service = (*DEBUG, "run", "--target", "service", "--select", "explodes")
    nowhere = f"http://127.0.0.1:{free_port()}"
    running = [
        (1, "Got 2 results", jobs.start(*DEBUG, "test", "--select", "nobody_left", job="test")),
        (1, "there are members", jobs.start(*service, job="python")),
        (
            1,
            "for rita",
            jobs.start(*members, job="reader", DBT_ENV_SECRET_TOKEN=tokens["rita"]),
        ),
        (2, "expired at", jobs.start(*members, job="expired", DBT_ENV_SECRET_TOKEN=tokens["otto"])),
        (2, "does not answer", jobs.start(*members, job="nowhere", JOB_CATALOG=nowhere)),
        (2, "'JOB_SCHEMA'", jobs.start(*members, job="profile", JOB_SCHEMA=None)),
    ]
    for code, words, job in running:
        done = job.wait()
        assert done.code == code, done.output
        assert words in done.output


def test_no_secret_is_written_or_shown(
    jobs: Jobs, endpoint: TokenEndpoint, tokens: dict[str, str]
) -> None:
    home = jobs.folder / "engine"
    engine = status(home)
    assert engine is not None
    write_spark_ui(int(jobs.variables["JOB_UI_PORT"]), jobs.folder / "ui")
    environment = psutil.Process(engine.jvm.pid).environ()
    (jobs.folder / "environment.txt").write_text(json.dumps(environment))

    secrets = tokens | {k: v for k, v in jobs.variables.items() if k.startswith("DBT_ENV_SECRET")}
    secrets |= {f"sven's token {n}": token for n, token in enumerate(endpoint.given)}
    record = home / "server.json"
    assert record.stat().st_mode & 0o077 == 0
    assert endpoint.given
    assert leaks(jobs.folder, secrets, but=record) == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ("*/logs/dbt.log", "On model.job.members"),
        ("*/target/manifest.json", "model.job.members"),
        ("engine/server.log", ""),
        ("events/**/events_*", "spark.sql.catalog.lake.token"),
        ("ui/*", "spark.sql.catalog.lake.token"),
        ("ps.txt", "server.args"),
        ("environment.txt", "JOB_TARGET"),
    ],
)
def test_the_scan_looked_at(jobs: Jobs, files: str, words: str) -> None:
    assert any(words in file.read_text() for file in jobs.folder.glob(files))


def test_the_scan_finds_a_token(jobs: Jobs, tokens: dict[str, str]) -> None:
    planted = jobs.folder / "main" / "logs" / "planted"
    planted.write_text(f"Authorization: Bearer {tokens['wanda']}\n")
    nothing = jobs.folder / "nothing"
    assert leaks(jobs.folder, {"hers": tokens["wanda"]}, but=nothing) == [
        "hers in main/logs/planted"
    ]
    planted.unlink()
