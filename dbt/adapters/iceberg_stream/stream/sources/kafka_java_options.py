"""Translate librdkafka's options for Kafka's Java client, which Spark uses.

The two clients name the options of SASL and TLS differently, and Java's reads certificates only
as PEM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.stream.errors import StreamError

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

# Options whose values are secret.
SECRET = re.compile(r"password|secret|jaas|key\.pem$|user\.info$|auth\.token$")
SECURITY = re.compile(r"(enable\.)?(sasl|ssl|security)\.")
LOGIN = "org.apache.kafka.common.security"
LOGIN_MODULES = {
    "PLAIN": f"{LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{LOGIN}.scram.ScramLoginModule",
}
# Java reads only keys in this form.
PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")
REDACTION = "spark.sql.redaction.string.regex"
# Java regular expression of a secret Kafka option in the text of a Spark query.
SECRET_IN_QUERY = (
    r'"kafka\.(?:sasl\.jaas\.config|ssl\.keystore\.key|ssl\.key\.password)"'
    r'\s+value: "(?:[^"\\]++|\\.)*+"?'
)


def secret_options(options: Mapping[str, str]) -> list[str]:
    """Return the names of the options whose values are secret.

    Args:
        options: the options of a Kafka client.
    """
    return [name for name in options if SECRET.search(name)]


def java_options(options: Mapping[str, str]) -> dict[str, str]:
    """Translate librdkafka's options for Java's client.

    Args:
        options: options by librdkafka's names.

    Raises:
        StreamError: Java's client has no such option, or a file cannot be read.
    """
    left = dict(options)
    java = {name: left.pop(name) for name in options if not SECURITY.match(name)}
    # librdkafka's default: read no messages of uncommitted transactions.
    java.setdefault("isolation.level", "read_committed")
    if (protocol := left.pop("security.protocol", None)) is not None:
        java["security.protocol"] = protocol.upper()
    java |= _login(left) | _trust(left) | _identity(left)
    if (checked := left.pop("ssl.endpoint.identification.algorithm", None)) is not None:
        java["ssl.endpoint.identification.algorithm"] = "" if checked == "none" else checked
    if left:
        raise StreamError(
            f"Spark's Kafka client does not support {', '.join(sorted(left))}. Remove it. For "
            "SASL and TLS the client supports security.protocol, sasl.mechanism "
            f"({', '.join(LOGIN_MODULES)}), sasl.username, sasl.password, ssl.ca.location, "
            "ssl.certificate.location, ssl.key.location (or .pem for .location), ssl.key.password, "
            "ssl.endpoint.identification.algorithm."
        )
    return java


def _login(options: dict[str, str]) -> dict[str, str]:
    """Remove the options of SASL, and return them as Java's line of JAAS."""
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
    """Remove and return the authorities that sign the brokers' certificates, if they are set."""
    authorities = _pem(options, "ssl.ca")
    if authorities is None:
        return {}
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}


def _identity(options: dict[str, str]) -> dict[str, str]:
    """Remove and return the client's own certificate and its key."""
    certificate, key = _pem(options, "ssl.certificate"), _pem(options, "ssl.key")
    password = options.pop("ssl.key.password", None)
    if certificate is None and key is None:
        return {}
    if certificate is None or key is None:
        raise StreamError("A Kafka source needs the client's certificate and its key, or neither.")
    if not key.lstrip().startswith(PKCS8):
        raise StreamError(
            "Spark's Kafka client reads keys in PKCS#8 only. Convert yours with: openssl "
            "pkcs8 -topk8 -nocrypt -in client.key -out client.pkcs8.key"
        )
    java = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate,
        "ssl.keystore.key": key,
    }
    return java if password is None else java | {"ssl.key.password": password}


def _pem(options: dict[str, str], name: str) -> str | None:
    """Return an option's PEM text; read a file here, because Spark's workers may not have it."""
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
    """Have Spark redact secret Kafka options in its event log and its web pages.

    Args:
        spark: the session.
    """
    pattern = spark.conf.get(REDACTION, None)
    if SECRET_IN_QUERY not in (pattern or ""):
        spark.conf.set(REDACTION, f"{pattern}|{SECRET_IN_QUERY}" if pattern else SECRET_IN_QUERY)
