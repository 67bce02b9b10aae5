"""Errors of the libraries below PyIceberg's clients of Glue, Hive and databases.

PyIceberg does not convert them. None of the libraries needs to be installed.
"""

from __future__ import annotations

import sys

BASES = (
    ("botocore.exceptions", ("BotoCoreError", "ClientError")),
    ("thrift.Thrift", ("TException",)),
    ("sqlalchemy.exc", ("SQLAlchemyError",)),
)
# Errors of requests that never reached a server, or that it refused.
REFUSED = {
    "botocore.EndpointConnectionError",
    "botocore.ConnectTimeoutError",
    "botocore.ProxyConnectionError",
    "botocore.SSLError",
    "sqlalchemy.ProgrammingError",
    "sqlalchemy.IntegrityError",
    "sqlalchemy.DataError",
    "sqlalchemy.NotSupportedError",
}
# After any other error of these classes the server may have executed the request.
UNANSWERED = {
    "botocore.HTTPClientError",
    "botocore.ConnectionError",
    "sqlalchemy.DBAPIError",
    "thrift.TTransportException",
    "thrift.TApplicationException",
    "thrift.TProtocolException",
    # Hive's metastore raises it for errors of its own database.
    "hive_metastore.MetaException",
}
THRIFT_NOT_OPEN = 1


def client_errors() -> tuple[type[Exception], ...]:
    """Return the base classes of errors that this process may raise, for an `except` clause."""
    errors: list[type[Exception]] = [ConnectionError, TimeoutError]
    for module, names in BASES:
        if module in sys.modules:
            errors += [getattr(sys.modules[module], name) for name in names]
    return tuple(errors)


def may_have_arrived(error: Exception) -> bool:
    """Return whether the server may have executed a request that failed with this error."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    if "botocore.ClientError" in kinds:
        response = getattr(error, "response", {})
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)) >= 500
    if "thrift.TTransportException" in kinds:
        return getattr(error, "type", None) != THRIFT_NOT_OPEN
    return bool(kinds & UNANSWERED) and not kinds & REFUSED
