from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.engines.settings import Endpoint, EngineSettings

SETTINGS = EngineSettings(home=Path("/project/.iceberg_stream"))


def test_targets() -> None:
    assert Endpoint(socket=Path("/run/x/server")).target == "unix:/run/x/server"
    assert Endpoint("spark", 1).target == "spark:1"
    assert Endpoint("::1", 1).target == "[::1]:1"


def test_localhost_is_ipv4_because_another_user_may_listen_on_the_same_port_of_ipv6() -> None:
    assert Endpoint("localhost", 15002, "s3cret").target == "127.0.0.1:15002"
    # A certificate proves who listens.
    assert Endpoint("localhost", 15002, tls=True).target == "localhost:15002"


def test_secrets_stay_out_of_reprs() -> None:
    settings = replace(SETTINGS, spark_conf=(("spark.hadoop.fs.s3a.secret.key", "s3cret"),))
    shown = repr(Endpoint("localhost", 1, "s3cret")) + repr(settings) + settings.summary()
    assert "s3cret" not in shown
    assert "spark.hadoop.fs.s3a.secret.key" in settings.summary()


@pytest.mark.parametrize(
    "change",
    [
        {"driver_memory": "3g"},
        {"packages": ("a:b:1",)},
        {"spark_conf": (("spark.sql.ansi.enabled", "true"),)},
        {"java_home": Path("/opt/java")},
    ],
)
def test_fingerprint_tells_servers_apart(change: dict[str, Any]) -> None:
    assert replace(SETTINGS, **change).fingerprint() != SETTINGS.fingerprint()


@pytest.mark.parametrize(
    "change",
    [{"keep_alive": 0.0}, {"start_timeout": 5.0}, {"maven_repository": "https://mirror"}],
)
def test_fingerprint_ignores_what_a_running_server_does_not_mind(change: dict[str, Any]) -> None:
    assert replace(SETTINGS, **change).fingerprint() == SETTINGS.fingerprint()


def test_fingerprint_ignores_the_order_of_settings() -> None:
    conf = (("a", "1"), ("b", "2"))
    one, two = (replace(SETTINGS, spark_conf=c) for c in (conf, conf[::-1]))
    assert one.fingerprint() == two.fingerprint()


def test_other_cloud_credentials_are_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    ambient = replace(SETTINGS, ambient_credentials=True)
    before, unseeing = ambient.fingerprint(), SETTINGS.fingerprint()
    monkeypatch.setenv("AWS_SESSION_TOKEN", "renewed")
    assert ambient.fingerprint() != before
    assert SETTINGS.fingerprint() == unseeing
