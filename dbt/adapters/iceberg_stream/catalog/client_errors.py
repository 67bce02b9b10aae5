"""Errors of the libraries below PyIceberg's clients of Glue, Hive and databases.

PyIceberg lets them pass as they are. None of the libraries need be there.
"""

from __future__ import annotations

import sys

BASES = (
    ("botocore.exceptions", ("BotoCoreError", "ClientError")),
    ("thrift.Thrift", ("TException",)),
    ("sqlalchemy.exc", ("SQLAlchemyError",)),
)
# Of requests that no server has got, or that it has refused.
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
# All others of these kinds may have come when the server had done what it was asked to.
LOST = {
    "botocore.HTTPClientError",
    "botocore.ConnectionError",
    "sqlalchemy.DBAPIError",
    "thrift.TTransportException",
    "thrift.TApplicationException",
    "thrift.TProtocolException",
    # Hive's metastore says so of its own database.
    "hive_metastore.MetaException",
}
THRIFT_NOT_OPEN = 1


def client_errors() -> tuple[type[Exception], ...]:
    """The base classes of errors that may be raised in this process; for `except`."""
    found: list[type[Exception]] = [ConnectionError, TimeoutError]
    for module, names in BASES:
        if module in sys.modules:
            found += [getattr(sys.modules[module], name) for name in names]
    return tuple(found)


def may_have_arrived(error: Exception) -> bool:
    """Whether a request that failed so may have been carried out all the same."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    if "botocore.ClientError" in kinds:
        response = getattr(error, "response", {})
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)) >= 500
    if "thrift.TTransportException" in kinds:
        return getattr(error, "type", None) != THRIFT_NOT_OPEN
    return bool(kinds & LOST) and not kinds & REFUSED
