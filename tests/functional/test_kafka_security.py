"""Kafka behind passwords and certificates, which nobody else gets to see."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from dbt.tests.util import get_connection, run_dbt, run_dbt_and_capture

from dbt.adapters.iceberg_stream.engines.embedded import stop
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from dbt.adapters.iceberg_stream.stream.sources.kafka.token_command import with_token_command
from tests.functional.lake import rows
from tests.integration.leaks import leaks, write_spark_ui
from tests.servers.kafka import SecuredKafka, secured_kafka
from tests.servers.ports import free_port
from tests.servers.producer import CheckedProducer
from tests.servers.token_endpoint import TokenEndpoint, token_endpoint

KINDS = ("plain", "scram", "certificate", "tokens", "command")
CLIENT_SECRET = "s3cret of ~the client"
COLUMNS = "columns: 'id bigint, status string'"


def may_read(principal: str) -> AclBinding:
    whose = principal, "*", AclOperation.READ, AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, *whose)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with secured_kafka(tmp_path_factory.mktemp("secured")) as server:
        admin = AdminClient({"bootstrap.servers": server.open})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result()
        # Readers have no more rights than they need: none of a consumer group.
        for done in admin.create_acls(
            [may_read("User:alice"), may_read("User:CN=client"), may_read("User:mina")]
        ).values():
            done.result()
        producer = CheckedProducer({"bootstrap.servers": server.open})
        for number in range(10):
            producer.produce("orders", value=json.dumps({"id": number, "status": "new"}))
        producer.deliver()
        yield server


@pytest.fixture(scope="module")
def client_key(kafka: SecuredKafka) -> tuple[Path, Path]:
    return kafka.authority.issue("client")


@pytest.fixture(scope="module")
def endpoint(kafka: SecuredKafka) -> Iterator[TokenEndpoint]:
    with token_endpoint(CLIENT_SECRET, kafka.issue_token) as running:
        yield running


@pytest.fixture(scope="module")
def printed_token(kafka: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a token, for a command that prints it."""
    file = tmp_path_factory.mktemp("command") / "token"
    file.write_text(kafka.issue_token("mina"))
    return file


@pytest.fixture(scope="module")
def connections(
    kafka: SecuredKafka,
    client_key: tuple[Path, Path],
    endpoint: TokenEndpoint,
    printed_token: Path,
) -> dict[str, dict[str, str]]:
    login = {"sasl.username": "alice", "sasl.password": kafka.password}
    trust = {"ssl.ca.location": str(kafka.authority.certificate)}
    certificate, key = (str(file) for file in client_key)
    plain = {
        "bootstrap.servers": kafka.plain,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
    }
    scram = {
        "bootstrap.servers": kafka.scram,
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
    }
    tokens = {
        "bootstrap.servers": kafka.tokens,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "mina",
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.token.endpoint.url": endpoint.uri,
        "sasl.oauthbearer.scope": "read",
        "sasl.oauthbearer.extensions": "team=sales",
    }
    command = {"bootstrap.servers": kafka.tokens, "security.protocol": "sasl_plaintext"}
    ours = {"ssl.certificate.location": certificate, "ssl.key.location": key}
    return {
        "plain": plain | login,
        "scram": scram | login | trust,
        "certificate": {
            "bootstrap.servers": kafka.certificate,
            "security.protocol": "ssl",
            **trust,
            **ours,
        },
        "tokens": tokens,
        "command": {**command, "token_command": f"cat {printed_token}"},
        "no_token": {**command, "token_command": "cat /no/such/token"},
        "wrong_secret": {**tokens, "sasl.oauthbearer.client.secret": "mistyped-secret"},
        "without_rights": {**tokens, "sasl.oauthbearer.client.id": "bob"},
        "mistyped": plain | login | {"sasl.password": "mistyped-password"},
        "stranger": scram | login,
    }


def sources(*names: str) -> str:
    tables = "".join(
        f"""
      - name: {name}
        config: {{meta: {{stream: {{type: kafka, connection: {name}, topic: orders, {COLUMNS}}}}}}}
"""
        for name in names
    )
    return f"sources:\n  - name: kafka\n    tables:{tables}"


def model(name: str) -> str:
    return (
        "{{ config(materialized='stream', unique_key='id') }}\n"
        f"select * from {{{{ stream(source('kafka', '{name}')) }}}}"
    )


@pytest.mark.slow
class TestSecuredKafka:
    """With an engine of its own, which shows and writes down all that Spark can."""

    @pytest.fixture(scope="class")
    def place(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        folder = tmp_path_factory.mktemp("shown")
        (folder / "events").mkdir()
        yield folder
        stop(folder / "engine")

    @pytest.fixture(scope="class")
    def ui_port(self) -> int:
        return free_port()

    @pytest.fixture(scope="class")
    def dbt_profile_target(
        self, place: Path, ui_port: int, connections: dict[str, dict[str, str]]
    ) -> dict[str, object]:
        return {
            "type": "iceberg_stream",
            "threads": 3,
            "warehouse": str(place / "warehouse"),
            "engine_home": str(place / "engine"),
            "keep_alive": 120,
            "progress": False,
            "kafka": connections,
            "spark_conf": {
                "spark.ui.enabled": "true",
                "spark.ui.port": str(ui_port),
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": str(place / "events"),
                "spark.eventLog.compress": "false",
            },
        }

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        names = (*KINDS, "mistyped", "stranger", "nobody", "wrong_secret", "without_rights")
        names += ("no_token",)
        return {"sources.yml": sources(*names)} | {f"{name}.sql": model(name) for name in names}

    def test_reads(self, project: Any) -> None:
        run_dbt(["--log-level-file", "debug", "run", "-s", *KINDS])
        for name in KINDS:
            assert [
                n for (n,) in rows(project, f"select id from {{schema}}.{name} order by 1")
            ] == [*range(10)]

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("mistyped", "Invalid username or password"),
            ("stranger", "broker certificate could not be verified"),
            ("wrong_secret", "invalid_client"),
            ("no_token", "/no/such/token: No such file"),
            ("without_rights", "authorization failed"),
            ("nobody", "The profile has no Kafka connection `nobody`"),
        ],
    )
    def test_refusals_say_why_and_soon(self, project: Any, name: str, words: str) -> None:
        begun = time.monotonic()
        _, said = run_dbt_and_capture(["run", "-s", name], expect_pass=False)
        assert words in " ".join(said.split())
        assert time.monotonic() - begun < 30

    def test_no_secret_is_shown(
        self,
        project: Any,
        place: Path,
        ui_port: int,
        kafka: SecuredKafka,
        client_key: tuple[Path, Path],
        connections: dict[str, dict[str, str]],
        endpoint: TokenEndpoint,
        printed_token: Path,
    ) -> None:
        # Spark cuts the texts of deep queries: this one it shows to its end.
        with get_connection(project.adapter) as connection:
            for name in KINDS:
                options = with_token_command(connections[name])
                source = KafkaSource("orders", options, Envelope("raw", ""))
                upper = source.present(None)
                frame = source.read(connection.handle.session.spark, None, upper)
                assert frame.toArrow().num_rows == 10
        write_spark_ui(ui_port, place / "ui")
        secrets = {
            "password": kafka.password,
            "mistyped": "mistyped-password",
            "client_secret": CLIENT_SECRET,
            "token": endpoint.given[-1],
            "printed_token": printed_token.read_text(),
            "key": client_key[1].read_text().splitlines()[2],
        }
        assert leaks(place, secrets, but=place / "none") == []
        assert leaks(Path(project.project_root), secrets, but=place / "none") == []
        shown = b"".join(file.read_bytes() for file in place.rglob("events_*"))
        assert b"kafka.security.protocol" in shown
        assert kafka.password not in run_dbt_and_capture(["debug"])[1]
