"""Options of Kafka's clients: written as librdkafka names them, and translated for Java's.

The two name what they need of SASL and TLS differently, and Java's takes certificates as PEM only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.stream.errors import StreamError

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

# Options whose values nobody may see.
SECRET = re.compile(r"password|secret|jaas|key\.pem$")
SECURITY = re.compile(r"(enable\.)?(sasl|ssl|security)\.")
LOGIN = "org.apache.kafka.common.security"
LOGIN_MODULES = {
    "PLAIN": f"{LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{LOGIN}.scram.ScramLoginModule",
}
# Java reads keys in this form only.
PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")
# A secret among Kafka's options as Spark's query texts show it: a regular expression of Java's, for
# `spark.sql.redaction.string.regex`.
REDACTION = "spark.sql.redaction.string.regex"
IN_QUERY_TEXTS = (
    r'"kafka\.(?:sasl\.jaas\.config|ssl\.keystore\.key|ssl\.key\.password)"'
    r'\s+value: "(?:[^"\\]++|\\.)*+"?'
)


def secret_options(options: Mapping[str, str]) -> list[str]:
    """The names of those whose values nobody may see."""
    return [name for name in options if SECRET.search(name)]


def java_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of librdkafka as Java's client names them.

    Raises:
        StreamError: one of them has no counterpart, or a file cannot be read.
    """
    left = dict(options)
    java = {name: left.pop(name) for name in options if not SECURITY.match(name)}
    # As librdkafka does it: what transactions have not committed is no change.
    java.setdefault("isolation.level", "read_committed")
    if (protocol := left.pop("security.protocol", None)) is not None:
        java["security.protocol"] = protocol.upper()
    java |= _login(left) | _trust(left) | _identity(left)
    if (checked := left.pop("ssl.endpoint.identification.algorithm", None)) is not None:
        java["ssl.endpoint.identification.algorithm"] = "" if checked == "none" else checked
    if left:
        raise StreamError(
            f"The Kafka option {', '.join(sorted(left))} is not supported by Spark's Kafka "
            "client. Of SASL and TLS these are: security.protocol, sasl.mechanism "
            f"({', '.join(LOGIN_MODULES)}), sasl.username, sasl.password, ssl.ca.location, "
            "ssl.certificate.location, ssl.key.location (or .pem for .location), ssl.key.password, "
            "ssl.endpoint.identification.algorithm."
        )
    return java


def _login(options: dict[str, str]) -> dict[str, str]:
    """SASL: the name and password go into a line of JAAS."""
    mechanisms = options.pop("sasl.mechanisms", None)
    mechanism = options.pop("sasl.mechanism", mechanisms)
    name, password = options.pop("sasl.username", None), options.pop("sasl.password", None)
    if mechanism is None:
        return {}
    if mechanism not in LOGIN_MODULES or name is None or password is None:
        raise StreamError(
            f"`sasl.mechanism` must be one of {', '.join(LOGIN_MODULES)}, with "
            f"`sasl.username` and `sasl.password`; got {mechanism!r}."
        )
    login = f"username={_quoted(name)} password={_quoted(password)}"
    module = LOGIN_MODULES[mechanism]
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{module} required {login};"}


def _trust(options: dict[str, str]) -> dict[str, str]:
    """The authorities whose certificates brokers may have; Java's own without any."""
    authorities = _pem(options, "ssl.ca")
    if authorities is None:
        return {}
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}


def _identity(options: dict[str, str]) -> dict[str, str]:
    """The client's own certificate and its key."""
    certificate, key = _pem(options, "ssl.certificate"), _pem(options, "ssl.key")
    password = options.pop("ssl.key.password", None)
    if certificate is None and key is None:
        return {}
    if certificate is None or key is None:
        raise StreamError("A Kafka source needs the client's certificate and its key, or neither.")
    if not key.lstrip().startswith(PKCS8):
        raise StreamError(
            "Spark's Kafka client reads keys in PKCS#8 only. Turn yours into one with: openssl "
            "pkcs8 -topk8 -nocrypt -in client.key -out client.pkcs8.key"
        )
    java = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate,
        "ssl.keystore.key": key,
    }
    return java if password is None else java | {"ssl.key.password": password}


def _pem(options: dict[str, str], name: str) -> str | None:
    """What an option gives as text, or as the file that holds it: workers may not have the file."""
    text, location = options.pop(f"{name}.pem", None), options.pop(f"{name}.location", None)
    if text is not None or location is None:
        return text
    try:
        return Path(location).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise StreamError(f"`{name}.location` of a Kafka source cannot be read: {error}") from error


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def hide_secrets(spark: SparkSession) -> None:
    """Have Spark leave them out of the texts of queries, which its event log and web pages show."""
    pattern = spark.conf.get(REDACTION, None)
    if IN_QUERY_TEXTS not in (pattern or ""):
        spark.conf.set(REDACTION, f"{pattern}|{IN_QUERY_TEXTS}" if pattern else IN_QUERY_TEXTS)
