"""Messages name addresses, and no secrets in them."""

from __future__ import annotations

import json
import string
import time
from collections.abc import Callable

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.exceptions import ServerError

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.errors.redaction import HIDDEN, LONGEST, without_secrets
from dbt.adapters.iceberg_stream.errors.spark import describe


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:hush@catalog:8181/api", "https://…@catalog:8181/api"),
        ("https://me:hu/sh@catalog/api", "https://…@catalog/api"),
        ("https://hush@catalog", "https://…@catalog"),
        ("jdbc:oracle:thin:me/hush@//db:1521/x", "jdbc:oracle:thin:…@//db:1521/x"),
        (
            "jdbc:mysql://db/x?user=me&password=hush&ssl=1",
            "jdbc:mysql://db/x?user=me&password=…&ssl=1",
        ),
        ("jdbc:sqlserver://db;pwd=hush;a=b", "jdbc:sqlserver://db;pwd=…;a=b"),
        ("https://a/b?X-Amz-Signature=hush&sig=hush", "https://a/b?X-Amz-Signature=…&sig=…"),
        # A password could begin with digits and have a slash.
        ("https://me:8080/hush@catalog/api", "https://…@catalog/api"),
        ("//me:8080/hush@catalog", "//…@catalog"),
        ("https://me:h@s#h?u&h@catalog/api", "https://…@catalog/api"),
        ("https://catalog:8181/v1/tables", "https://catalog:8181/v1/tables"),
        ("s3a://KEY:hu/sh@bucket/x", "s3a://…@bucket/x"),
        (
            "abfss://box@account.dfs.core.windows.net/x",
            "abfss://box@account.dfs.core.windows.net/x",
        ),
        ("s3://bucket/part_key=7/a@b", "s3://bucket/part_key=7/a@b"),
    ],
)
def test_addresses(address: str, shown: str) -> None:
    assert without_secrets(address) == shown
    assert without_secrets(f"('{address}') failed") == f"('{shown}') failed"


def test_messages_of_catalogs_and_of_spark() -> None:
    uri = "https://me:hush@catalog/api"
    names = RemoteBackend(CatalogSettings("lake", {"type": "rest", "uri": uri}), None)
    with pytest.raises(CatalogError) as raised, names._refusals("read s.t"):
        raise ServerError(f"no answer of {uri}")
    assert str(raised.value).count("https://…@catalog/api") == 2
    assert "hush" not in str(raised.value)
    assert "hush" not in describe(f"Cannot connect to {uri}")


# Both ends of a secret, so that a part of one is found, too.
ENDS = ("Zq9", "x7K")


def secret(alphabet: str, least: int = 0) -> st.SearchStrategy[str]:
    inner = st.text(st.sampled_from(alphabet), min_size=least, max_size=30)
    return inner.map(lambda text: f"{ENDS[0]}{text}{ENDS[1]}")


WORD = string.ascii_letters + string.digits
UNQUOTED = WORD + "!#$%()*+,-./:<=>?@[]^_`{|}~"
PRINTABLE = UNQUOTED + " \"'\\&;\n\täß"
NAMES = [
    "password",
    "passwd",
    "pwd",
    "secret",
    "client_secret",
    "client-secret",
    "clientSecret",
    "token",
    "access_token",
    "refreshToken",
    "id_token",
    "sessionToken",
    "AWS_SECRET_ACCESS_KEY",
    "s3.secret-access-key",
    "s3.session-token",
    "adls.account-key",
    "AccountKey",
    "SharedAccessKey",
    "api_key",
    "x-api-key",
    "apiKey",
    "private_key",
    "Authorization",
    "Set-Cookie",
    "sasl.password",
    "sasl.jaas.config",
    "schema.registry.basic.auth.user.info",
    "header.Authorization",
    "gcs.oauth2.token",
    "fs.azure.account.key.shop.dfs.core.windows.net",
    "adls.sas-token.shop.dfs.core.windows.net",
    "adls.connection-string.shop",
    "spark.sql.catalog.lake.token",
    "ssl.key.password",
    "X-Amz-Security-Token",
    "DBT_ENV_SECRET_PASSWORD",
    "passphrase",
    "credential",
    "X-Amz-Signature",
]
UNQUOTED_CONTEXTS = (
    "{name}={value}",
    "{name} = {value}",
    "{name}: {value}",
    "{name} => {value}",
    "jdbc:postgresql://db:5432/x?user=me&{name}={value}&ssl=1",
    "jdbc:sqlserver://db;user=me;{name}={value};a=b",
    "Map(user -> me, {name}={value}",
    "--{name} {value}",
    "--{name}={value}",
)
QUOTED_CONTEXTS: dict[str, Callable[[str, str], str]] = {
    "JSON": lambda name, value: json.dumps({"a": 1, name: value, "b": 2}),
    "compact JSON": lambda name, value: json.dumps({name: value}, separators=(",", ":")),
    "Python": lambda name, value: repr({name: value, "b": 1}),
    "YAML": lambda name, value: f"{name}: {json.dumps(value)}",
    "a call": lambda name, value: f"Client({name.replace('-', '_')}={value!r}, a=1)",
    "TOML": lambda name, value: f"{name} = {json.dumps(value)}",
}
ADDRESSES = (
    "https://me:{}@host:8080/path",
    "//me:{}@host",
    "jdbc:mysql://me:{}@host/db",
    "postgresql+psycopg2://me:{}@host/db",
    "https://{}@host/maven2",
    "jdbc:oracle:thin:me/{}@//db:1521/x",
    "http://me:8080/{}@host",
    "s3a://KEY:{}@bucket/x",
)
AROUND = st.sampled_from(
    ["{}", "Error: {} failed", "could not fetch x from {}: timed out", "a\n{}\nb", "({})", "[{}]"]
)


def hidden(text: str, value: str) -> bool:
    shown = without_secrets(text)
    return not any(end in shown for end in ENDS) and value not in shown


@given(st.sampled_from(NAMES), st.sampled_from(UNQUOTED_CONTEXTS), secret(UNQUOTED), AROUND)
def test_secrets_by_their_name(name: str, context: str, value: str, around: str) -> None:
    text = around.format(context.format(name=name, value=value))
    assert hidden(text, value), without_secrets(text)


@given(st.sampled_from(NAMES), st.sampled_from(sorted(QUOTED_CONTEXTS)), secret(PRINTABLE), AROUND)
def test_secrets_in_quotes(name: str, context: str, value: str, around: str) -> None:
    text = around.format(QUOTED_CONTEXTS[context](name, value))
    assert hidden(text, value), without_secrets(text)


@given(st.sampled_from(NAMES), secret(PRINTABLE))
def test_secrets_in_json_in_json(name: str, value: str) -> None:
    text = json.dumps({"message": json.dumps({name: value})})
    assert hidden(text, value), without_secrets(text)


@given(st.sampled_from(ADDRESSES), secret(UNQUOTED + "&;"), AROUND)
def test_secrets_of_addresses(address: str, value: str, around: str) -> None:
    text = around.format(address.format(value))
    assert hidden(text, value), without_secrets(text)


@given(
    st.sampled_from(
        ["Bearer {}", "bearer {}", "Authorization: Bearer {}", "('Authorization', 'Bearer {}')"]
    ),
    secret(WORD + "-._~+/=", 12),
    AROUND,
)
def test_tokens_after_their_scheme(context: str, value: str, around: str) -> None:
    text = around.format(context.format(value))
    assert hidden(text, value), without_secrets(text)


@given(st.dictionaries(st.text(WORD), st.text(WORD)), AROUND)
def test_json_web_tokens(claims: dict[str, str], around: str) -> None:
    token = jwt.encode(claims, "k" * 32)
    assert not any(part in without_secrets(around.format(token)) for part in token.split("."))


@pytest.mark.parametrize(
    "text",
    [
        "create table t options (url 'jdbc:x', password 'Zq9 x7K')",
        "create user me identified by 'Zq9''x7K'",
        "<server><password>Zq9x7K</password></server>",
        "-----BEGIN RSA PRIVATE KEY-----\nZq9\nx7K\n-----END RSA PRIVATE KEY-----",
        "AKIAZq9AAAAAAAAAAx7K is not known",
        "curl -H 'X-Api-Key: Zq9x7K' https://host",
        "AccountName=shop;AccountKey=Zq9/x7K==;EndpointSuffix=core.windows.net",
        '"client_secret": "Zq9x7K',
    ],
)
def test_other_places(text: str) -> None:
    assert hidden(text, "Zq9x7K"), without_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "`token_file: /run/token` cannot be read (No such file).",
        "`oauth2: token_uri` would get the client's secret without TLS.",
        "unknown key `tokn`: did you mean `token`?",
        "The call has no bearer token. Set adbc.flight.sql.authorization_header.",
        "The token of ada expired at 2026-01-01 00:00:00 UTC, from `token` of the profile.",
        "`sasl.mechanism: PLAIN` needs `sasl.username` and `sasl.password`.",
        "unique_key: [id], partition_key=7 in s3://bucket/token=5/x.parquet",
        "Set `s3.access-key-id` and `s3.secret-access-key` in `catalog_properties`.",
        "file:///data/me@here/a:b@c.parquet is missing",
        "abfss://box@account.dfs.core.windows.net/token/x",
        "mismatched input 'from' expecting {'(', ','}: unexpected token 'x'",
        "Basic authentication is not supported",
    ],
)
def test_what_stays(text: str) -> None:
    assert without_secrets(text) == text


@given(st.text(st.sampled_from(":/@'\"\\ =a&;?-.pwdtoken\n"), max_size=300))
def test_hiding_twice_changes_nothing_more(text: str) -> None:
    once = without_secrets(text)
    assert HIDDEN in once or once == text


@pytest.mark.parametrize(
    "part", ["/", "//", "a:", "password", '\\"', "'", "token=", "a.", "eyJ", "@"]
)
def test_long_texts_take_no_long_time(part: str) -> None:
    begun = time.monotonic()
    without_secrets(part * 20_000)
    assert time.monotonic() - begun < 5


def test_a_long_text_takes_no_time_and_shows_no_part_of_a_secret() -> None:
    began = time.monotonic()
    text = without_secrets("/" * 400_000 + "@")
    assert time.monotonic() - began < 5
    assert len(text) <= LONGEST
    for length in range(LONGEST - 40, LONGEST):
        text = "x" * length + " https://user:hunter2@host" + "y" * LONGEST
        assert "hunter" not in without_secrets(text)
