"""Refuses to send passwords and tokens of a Kafka connection without TLS."""

from __future__ import annotations

from collections.abc import Mapping

from dbt.adapters.iceberg_stream.catalog.identity.transport import is_loopback, is_private
from dbt.adapters.iceberg_stream.errors.redaction import holds_secret, without_secrets
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import PREFIX
from dbt.adapters.iceberg_stream.stream.sources.kafka.client_options import OAUTHBEARER, OIDC

# The option of a connection in the profile.
ALLOW_PLAINTEXT = "allow_plaintext"
# SCRAM proves that the client knows the password without sending it.
SENT_SECRETS = ("PLAIN", OAUTHBEARER)
TOKEN_ENDPOINT = f"{OIDC}token.endpoint.url"
REGISTRY_LOGINS = ("basic.auth.user.info", "bearer.auth.token")


def require_private_brokers(options: Mapping[str, str]) -> None:
    """Check that Kafka's clients send no password and no token in plain text.

    Args:
        options: of Kafka's client, by librdkafka's names.

    Raises:
        StreamError: they would.
    """
    mechanism = options.get("sasl.mechanisms") or options.get("sasl.mechanism", "")
    is_plain = options.get("security.protocol", "").lower() == "sasl_plaintext"
    if is_plain and mechanism.upper() in SENT_SECRETS:
        for broker in filter(str.strip, options.get("bootstrap.servers", "").split(",")):
            if not _is_local(broker.strip().rpartition("://")[2]):
                raise _refusal("`security.protocol: sasl_plaintext`", broker.strip())
    endpoint = options.get(TOKEN_ENDPOINT)
    if endpoint and not is_private(endpoint):
        raise _refusal(f"`{TOKEN_ENDPOINT}`", endpoint)


def _is_local(broker: str) -> bool:
    if broker.startswith("["):
        return is_loopback(broker[1:].partition("]")[0])
    # An IPv6 address without brackets has no port.
    return is_loopback(broker if broker.count(":") > 1 else broker.partition(":")[0])


def require_private_registry(options: Mapping[str, str]) -> None:
    """Check that the schema registry's login is not sent in plain text.

    Args:
        options: of the registry's client, without `PREFIX`.

    Raises:
        StreamError: it would be.
    """
    for address in options.get("url", "").split(","):
        has_login = any(options.get(name) for name in REGISTRY_LOGINS) or holds_secret(address)
        if has_login and not is_private(address.strip()):
            raise _refusal(f"`{PREFIX}url`", address.strip())


def _refusal(option: str, address: str) -> StreamError:
    return StreamError(
        f"{option} would send a secret to {without_secrets(address)} without TLS. Use TLS, or set "
        f"`{ALLOW_PLAINTEXT}: true` in the profile's `kafka` connection if nobody else can read "
        "what this network transports."
    )
