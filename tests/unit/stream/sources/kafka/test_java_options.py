"""Options as librdkafka names them, and what Java's client is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.java_options import java_options
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source

OIDC = "sasl.oauthbearer."
CLIENT = {
    "sasl.mechanism": "OAUTHBEARER",
    f"{OIDC}method": "oidc",
    f"{OIDC}client.id": "mina",
    f"{OIDC}client.secret": 'a"b',
    f"{OIDC}token.endpoint.url": "https://login/token",
}
KEY = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n"


def test_a_password_goes_into_a_line_of_jaas() -> None:
    options = java_options(
        {
            "bootstrap.servers": "broker:9092",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "al ice",
            "sasl.password": 'a"b\\c',
        }
    )
    assert options == {
        "bootstrap.servers": "broker:9092",
        "isolation.level": "read_committed",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        r'username="al ice" password="a\"b\\c";',
    }


def test_a_client_of_an_authorization_server() -> None:
    java = java_options(
        {**CLIENT, f"{OIDC}scope": "read write", f"{OIDC}extensions": "team=sales, pool=a=b"}
    )
    assert java == {
        "isolation.level": "read_committed",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": "https://login/token",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule "
        r'required clientId="mina" clientSecret="a\"b" scope="read write" extension_team="sales" '
        'extension_pool="a=b";',
    }


def test_certificates_are_read_here(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("authority")
    (tmp_path / "client.pem").write_text("client")
    options = java_options(
        {
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.certificate.location": str(tmp_path / "client.pem"),
            "ssl.key.pem": KEY,
            "ssl.key.password": "of the key",
            "ssl.endpoint.identification.algorithm": "none",
            "isolation.level": "read_uncommitted",
        }
    )
    assert options == {
        "isolation.level": "read_uncommitted",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "authority",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "client",
        "ssl.keystore.key": KEY,
        "ssl.key.password": "of the key",
        "ssl.endpoint.identification.algorithm": "",
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sasl.mechanism": "GSSAPI"}, "`sasl.mechanism: GSSAPI` is not supported"),
        ({"sasl.mechanism": "MD5"}, "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTH"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "a"}, "needs `sasl.username` and"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "Set `sasl.oauthbearer.method: oidc`"),
        (
            {"sasl.mechanism": "OAUTHBEARER", f"{OIDC}method": "oidc", f"{OIDC}scope": "a"},
            "needs `sasl.oauthbearer.client.id`, `sasl.oauthbearer.client.secret`",
        ),
        (
            {**CLIENT, "sasl.oauthbearer.grant.type": "jwt"},
            "does not support sasl.oauthbearer.grant.type",
        ),
        (
            {"enable.ssl.certificate.verification": "false"},
            "Spark's Kafka client does not support enable.ssl",
        ),
        (
            {"ssl.truststore.location": "x.jks"},
            "does not support ssl.truststore.location. Remove it",
        ),
        ({"ssl.ca.location": "/no/such/file"}, "`ssl.ca.location` of a Kafka source cannot be"),
        ({"ssl.key.pem": KEY}, "certificate and its key, or neither"),
        (
            {"ssl.certificate.pem": "c", "ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----"},
            "PKCS#8 only",
        ),
    ],
)
def test_what_java_cannot_be_told(options: dict[str, str], words: str) -> None:
    with pytest.raises(StreamError, match=words.replace("(", r"\(")) as refused:
        java_options(options)
    assert KEY not in str(refused.value)


def opened(spec: dict[str, Any], connections: dict[str, dict[str, str]]) -> Any:
    kafka = {"type": "kafka", "topic": "t", "format": "raw"} | spec
    definition = SourceDefinition(("s", "t"), "s.t", kafka)
    return open_source(definition, None, Path(), {}, connections)  # type: ignore[arg-type]


def test_a_source_takes_the_options_of_its_connection() -> None:
    shop = {"bootstrap.servers": "a:1", "client.id": "shop"}
    source = opened(
        {"connection": "shop", "options": {"client.id": "own", "log.queue": True}}, {"shop": shop}
    )
    assert source.options == {"bootstrap.servers": "a:1", "client.id": "own", "log.queue": "true"}
    assert "a:1" not in repr(source)


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.pem", "ssl.key.password"])
def test_a_secret_in_a_source_would_be_in_artifacts(name: str) -> None:
    with pytest.raises(StreamError, match=f"hold a secret, {name}") as refused:
        opened({"bootstrap_servers": "a:1", "options": {name: "s3cret"}}, {})
    assert "s3cret" not in str(refused.value)


SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "me", "sasl.password": "hush"}
TOKENS = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "hush",
    "security.protocol": "sasl_ssl",
}
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
REGISTRY = {"bootstrap.servers": "a:1", "schema.registry.url": "http://registry"}
LOGIN = {"schema.registry.basic.auth.user.info": "me:hush"}


@pytest.mark.parametrize(
    "shop",
    [
        SASL | {"bootstrap.servers": "a:1", "sasl.mechanism": "PLAIN"},
        SASL
        | {"bootstrap.servers": "127.0.0.1:1, localhost.evil.com:2", "sasl.mechanism": "PLAIN"},
        TOKENS | {"bootstrap.servers": "a:1", ENDPOINT: "http://login"},
        TOKENS | {"bootstrap.servers": "a:1", ENDPOINT: "http://localhost@login"},
        TOKENS
        | {
            "bootstrap.servers": "a:1",
            ENDPOINT: "https://login",
            "security.protocol": "SASL_PLAINTEXT",
        },
        REGISTRY | LOGIN,
        REGISTRY | {"schema.registry.url": "https://one,http://two"} | LOGIN,
        REGISTRY | {"schema.registry.url": "http://me:hush@registry"},
        REGISTRY | {"schema.registry.bearer.auth.token": "hush"},
    ],
)
def test_secrets_without_tls(shop: dict[str, str]) -> None:
    spec = {"connection": "shop"}
    with pytest.raises(StreamError, match="without TLS.*`allow_plaintext: true`") as raised:
        opened(spec, {"shop": shop})
    assert "hush" not in str(raised.value)
    source = opened(spec, {"shop": shop | {"allow_plaintext": True}})
    assert "allow_plaintext" not in source.options


@pytest.mark.parametrize(
    "shop",
    [
        SASL | {"bootstrap.servers": "127.0.0.1:1,[::1]:2", "sasl.mechanism": "PLAIN"},
        SASL | {"bootstrap.servers": "a:1", "sasl.mechanism": "SCRAM-SHA-512"},
        SASL
        | {"bootstrap.servers": "a:1", "sasl.mechanism": "PLAIN", "security.protocol": "sasl_ssl"},
        TOKENS | {"bootstrap.servers": "a:1", ENDPOINT: "https://login"},
        REGISTRY,
        REGISTRY | {"schema.registry.url": "https://registry"} | LOGIN,
        REGISTRY | {"schema.registry.url": "http://localhost:8081"} | LOGIN,
    ],
)
def test_what_needs_no_tls(shop: dict[str, str]) -> None:
    assert opened({"connection": "shop"}, {"shop": shop})
