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
SECRET = re.compile(r"password|secret|jaas|key\.pem$|user\.info$|auth\.token$|token_command$")
SECURITY = re.compile(r"(enable\.)?(sasl|ssl|security)\.")
LOGIN = "org.apache.kafka.common.security"
LOGIN_MODULES = {
    "PLAIN": f"{LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{LOGIN}.scram.ScramLoginModule",
}
OAUTHBEARER = "OAUTHBEARER"
OAUTHBEARER_MODULE = f"{LOGIN}.oauthbearer.OAuthBearerLoginModule"
# Gets tokens from an authorization server (KIP-768).
OAUTHBEARER_HANDLER = f"{LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
MECHANISMS = (*LOGIN_MODULES, OAUTHBEARER)
OIDC = "sasl.oauthbearer."
OIDC_REQUIRED = (f"{OIDC}client.id", f"{OIDC}client.secret", f"{OIDC}token.endpoint.url")
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
            f"({', '.join(MECHANISMS)}), sasl.username, sasl.password, {OIDC}method (oidc), "
            f"{', '.join(OIDC_REQUIRED)}, {OIDC}scope, {OIDC}extensions, ssl.ca.location, "
            "ssl.certificate.location, ssl.key.location (or .pem for .location), ssl.key.password, "
            "ssl.endpoint.identification.algorithm."
        )
    return java


def _login(options: dict[str, str]) -> dict[str, str]:
    """Remove the options of SASL, and return them as Java's line of JAAS."""
    mechanisms = options.pop("sasl.mechanisms", None)
    mechanism = options.pop("sasl.mechanism", mechanisms)
    if mechanism == OAUTHBEARER:
        return _oauthbearer(options)
    name, password = options.pop("sasl.username", None), options.pop("sasl.password", None)
    if mechanism is None:
        return {}
    if mechanism == "GSSAPI":
        raise StreamError(
            "`sasl.mechanism: GSSAPI` is not supported: it needs a Kerberos ticket on each machine "
            f"that reads Kafka. Use one of {', '.join(MECHANISMS)}."
        )
    if mechanism not in LOGIN_MODULES:
        raise StreamError(
            f"`sasl.mechanism` must be one of {', '.join(MECHANISMS)}; got {mechanism!r}."
        )
    if name is None or password is None:
        raise StreamError(
            f"`sasl.mechanism: {mechanism}` needs `sasl.username` and `sasl.password`."
        )
    login = f"username={_quoted(name)} password={_quoted(password)}"
    module = LOGIN_MODULES[mechanism]
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{module} required {login};"}


def _oauthbearer(options: dict[str, str]) -> dict[str, str]:
    """Remove the options of the client credentials grant (OIDC), and return Java's."""
    method = options.pop(f"{OIDC}method", None)
    if method != "oidc":
        raise StreamError(
            f"`sasl.mechanism: {OAUTHBEARER}` gets its tokens by the client credentials grant, or "
            f"from a command. Set `{OIDC}method: oidc` and "
            f"{', '.join(f'`{name}`' for name in OIDC_REQUIRED)}, or `token_command`; the method "
            f"is {'missing' if method is None else repr(method)}."
        )
    if missing := [name for name in OIDC_REQUIRED if not options.get(name)]:
        raise StreamError(
            f"`sasl.mechanism: {OAUTHBEARER}` needs {', '.join(f'`{n}`' for n in missing)}."
        )
    client, secret, endpoint = (options.pop(name) for name in OIDC_REQUIRED)
    login = {"clientId": client, "clientSecret": secret}
    if scope := options.pop(f"{OIDC}scope", None):
        login["scope"] = scope
    # librdkafka takes them as `key=value,key=value`.
    for extension in filter(None, options.pop(f"{OIDC}extensions", "").split(",")):
        name, _, value = extension.partition("=")
        login[f"extension_{name.strip()}"] = value.strip()
    settings = " ".join(f"{name}={_quoted(value)}" for name, value in login.items())
    return {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.login.callback.handler.class": OAUTHBEARER_HANDLER,
        f"{OIDC}token.endpoint.url": endpoint,
        "sasl.jaas.config": f"{OAUTHBEARER_MODULE} required {settings};",
    }


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
