"""Errors of Spark and Iceberg, as messages that name the cause and what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.errors.redacted import RedactedError
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

CANCELED = "OPERATION_CANCELED"
STACK = re.compile(r"\n\s*(JVM stacktrace:|at [\w.$]+\().*", re.DOTALL)
# Spark adds the query's plan to errors of analysis.
PLAN = re.compile(r"(; line \d+ pos \d+);?\n.*", re.DOTALL)
# An error lists its causes; the last one is the root cause.
CAUSE = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
CAUSE_LENGTH = 300
# What Spark says of an error in another thread or task, and nothing else.
WRAPPER = re.compile(r"Exception thrown in awaitResult:?\s*\Z")
# An error condition of Spark says all, unless it is about a task or a file.
COMPLETE = re.compile(r"\[(?!\w*(FAILED|ABORTED))[A-Z0-9_.]+\]")
# The adapter's own exception in a task says all: the traceback before it does not help.
OWN_EXCEPTION = re.compile(
    r"\A.*^dbt\.adapters\.iceberg_stream\.[\w.]+: ", re.DOTALL | re.MULTILINE
)
JAVA_CLASS = re.compile(r"^\(?(?:[a-z_]\w*\.)+([A-Z]\w*)\)?:?\s*")

# The catalog's refusals, as Iceberg's REST client words them. The last one is Nessie's: a server
# error, to which Iceberg adds that the state of the commit is unknown.
FORBIDDEN = r"ForbiddenException|Forbidden:|is not authorized for op|is not allowed for role"
UNAUTHORIZED = r"NotAuthorizedException|Not authorized:"
REFUSAL = f"{FORBIDDEN}|{UNAUTHORIZED}|The catalog refused|does not accept the token"

# The server is not reachable, or has closed the session: errors of gRPC and of Spark.
ENGINE_GONE = r"failed to connect|Connection refused|UNAVAILABLE|Socket closed|Connection reset"
SESSION_GONE = r"INVALID_HANDLE\.SESSION|SESSION_CLOSED|SESSION_NOT_FOUND|SESSION_CHANGED"
SESSION_GONE += "|RESPONSE_ALREADY_RECEIVED|NO_ACTIVE_SESSION"
ENGINE_GONE_ADVICE = (
    "The connection to Spark is lost. The log of an embedded engine is server.log in the "
    "project's .iceberg_stream folder; the next command starts a new engine."
)
# The server's own class failed at its first use, such as in a task that was canceled, and stays
# unusable. An embedded engine ends.
BROKEN_CLASS = r"Could not initialize class (java|scala|org\.apache|org\.sparkproject|io\.netty)\."
# Spark reports a fatal error of Java, such as that of a class, without words.
NO_DETAILS = 'details = ""'
FATAL = "The Spark server ended the statement with an error that only its log has."
# Iceberg's error when the catalog did not answer a commit.
COMMIT_STATE_UNKNOWN = "Cannot determine whether the commit was successful"

POST_FAILED = "Error occurred while processing POST request"
# What Iceberg adds to a refusal.
STATE_UNKNOWN_SUFFIX = re.compile(rf"\n\s*{COMMIT_STATE_UNKNOWN}.*", re.DOTALL)

GRPC_DETAILS = re.compile(r'^\s*details = "(.+)"$', re.MULTILINE)
# The text of gRPC's ValueError, which has no class of its own.
CLOSED_CHANNEL = "Cannot invoke RPC"

CREDENTIALS_REFUSED = (
    "The storage refused the credentials: those that the catalog vends for this table, or those "
    "in `catalog_properties`. Ask the administrator of the catalog or of the storage."
)
NO_CREDENTIALS = (
    "The catalog vends no storage credentials. Set `s3.access-key-id` and "
    "`s3.secret-access-key` in `catalog_properties`, or allow `ambient_credentials`."
)
# The error of a catalog that may not assume the role that vends a table's credentials.
CATALOG_WITHOUT_CREDENTIALS = r"Service: Sts, Status Code"

# Pattern of an error's text, and what a user can do about it.
CONFLICT = (
    r"Found conflicting files|Cannot commit|Commit failed|CommitFailedException"
    r"|has been updated by another process|no schema has been added|Table UUID does not match"
    r"|no current version id has been set"
    r"|Missing required files to delete|stale table metadata"
    r"|Deleted manifest \S+ could not be found in the latest snapshot"
)
# Patterns of Spark's messages, and what to do. The first match counts.
ADVICE = (
    (
        CONFLICT,
        "The commit conflicts with another writer's; nothing of it is visible. "
        "Run the model again.",
    ),
    (
        r"MERGE_CARDINALITY_VIOLATION",
        "Several rows of the model have the same unique_key, so Spark cannot decide which of them "
        "updates the table's row. Make the model return one row for each key.",
    ),
    (
        r"UNRESOLVED_COLUMN[^`]*`DBT_INTERNAL_SOURCE`",
        "The new rows do not have this column. If the table has it and the model no longer returns "
        "it, set `on_schema_change` to append_new_columns, which keeps the column, or to "
        "sync_all_columns, which drops it. Otherwise correct the config that names it.",
    ),
    (
        r"Cannot delete file where some, but not all, rows match filter",
        "Some data files are only partly in the replaced range. Partition the table by the "
        "range's column.",
    ),
    (
        r"Deletes are supported in V2 and above",
        "The table has format version 1, which has no delete files for `merge-on-read`. Set "
        "`format_version` to 2 or 3, or `merge_mode: copy-on-write`.",
    ),
    (
        r"Cannot find field \d+",
        "A column that once partitioned the table is gone, and without it Iceberg's merge-on-read "
        "cannot delete rows. Set `merge_mode: copy-on-write`, or drop the table and build it "
        "again; --full-refresh alone keeps the earlier partition fields.",
    ),
    (
        r"Cannot create identity partition|identity partition sourced from different field",
        "A new column has the name of a partition field that the table has or once had, such as "
        "`at_day` for day(at). Give the column another name; if the table is no longer partitioned "
        "so, you may also drop it and build it again.",
    ),
    (
        r"Cannot downgrade v\d+ table",
        "The table has a newer format version, which another program may have given it. Set "
        "`format_version` to that version, or remove it from the config.",
    ),
    (
        r"Cannot find source column for sort field",
        "A column cannot be dropped while the table is sorted by it. Set `sort_order` to other "
        "columns, or to `[]`: without the config, the table keeps its order.",
    ),
    (
        r"INVALID_PANDAS_UDF_PLACEMENT",
        "Compute Python aggregates in a query of their own and join its rows, or write the "
        "function in SQL.",
    ),
    (
        r"(?s)Python worker.*pyarrow\.lib\.Arrow(Invalid|TypeError)",
        "If a Python function of the project returned this value: correct the function, or the "
        "data type of its `returns`.",
    ),
    (
        BROKEN_CLASS,
        "A class of the Spark server failed when it was first used, and stays unusable. An "
        "embedded engine ends, and the next command starts a new one; restart a cluster's server.",
    ),
    (r"No space left on device|Disk quota exceeded", "The disk is full. Free space and run again."),
    (
        r"database is locked|SQLITE_BUSY",
        "Another process has locked the SQLite catalog. Wait until it has finished and run again.",
    ),
    (
        r"SQLITE_CORRUPT|SQLITE_NOTADB|database disk image is malformed|file is not a database",
        "The SQLite catalog is damaged. Restore catalog.db in the warehouse folder from a backup.",
    ),
    (
        r"View with same name already exists",
        "A view has the table's name. Drop the view, or build the table by a model, which "
        "replaces the view.",
    ),
    (
        r"Table with same name already exists",
        "A table has the view's name. Drop the table, or build the view by a model, which "
        "replaces the table.",
    ),
    (r"Service: S3, Status Code: 40[13]", CREDENTIALS_REFUSED),
    (
        CATALOG_WITHOUT_CREDENTIALS,
        "The catalog itself has no access to the storage: its own credentials, or the role that it "
        "assumes, are wrong. Tell its administrator.",
    ),
    (r"Unable to load credentials from any of the providers", NO_CREDENTIALS),
    (
        r"outside\.the\.warehouse\.of\.the\.Catalog|NotInMountpointException",
        "A file of the table is outside the catalog's warehouse, where it may not be.",
    ),
    (
        "Unable to execute HTTP request",
        "The storage does not answer. Check `s3.endpoint`, if you set it, and that the storage is "
        "running.",
    ),
    (
        FORBIDDEN,
        "The catalog refused it; nothing was changed. Ask its administrator for the privilege.",
    ),
    (
        UNAUTHORIZED,
        "The catalog does not accept the token. It may have expired or be for another catalog.",
    ),
    (
        r"Cannot find catalog plugin class|CATALOG_NOT_FOUND|ClassNotFoundException: org.apache",
        "The Spark server has no Iceberg. Put iceberg-spark-runtime for its Spark version on the "
        "server's class path.",
    ),
    (
        r"OutOfMemoryError|Java heap space",
        "The engine ran out of memory. Raise `driver_memory` in the profile.",
    ),
    (
        SESSION_GONE,
        "The Spark server has closed the session: the server was restarted, or the session timed "
        "out.",
    ),
    (
        r"RESTException|HttpHostConnectException",
        "The catalog does not answer Spark, or not correctly. Check that it is running.",
    ),
)


class StatementError(RedactedError):
    """A statement failed. The message is the cause and, for known errors, what to do.

    Attributes:
        condition: Spark's error condition.
        engine_gone: whether the connection to Spark is lost.
        not_committed: whether the table shows that the statement was not committed.
    """

    def __init__(
        self,
        message: str,
        condition: str | None = None,
        engine_gone: bool = False,
        not_committed: bool = False,
    ) -> None:
        super().__init__(message)
        self.condition = condition
        self.engine_gone = engine_gone
        self.not_committed = not_committed

    def add(self, text: str) -> None:
        """Append a line to the message."""
        self.args = (f"{self}\n{text}",)

    @property
    def canceled(self) -> bool:
        """Return whether the statement was canceled."""
        return self.condition == CANCELED

    def for_principal(self, principal: str) -> StatementError:
        """Return the error with the user's name, if the catalog refused the statement.

        Args:
            principal: the user's name; empty if unknown.
        """
        user = f"The request to the catalog was made as {principal}."
        if not principal or user in str(self) or not re.search(REFUSAL, str(self)):
            return self
        text = f"{self}\n{user}"
        return StatementError(text, self.condition, self.engine_gone)

    @property
    def token_refused(self) -> bool:
        """Return whether the catalog refused the token, so that nothing was committed."""
        return re.search(UNAUTHORIZED, str(self)) is not None and not self.commit_state_unknown

    @property
    def commit_state_unknown(self) -> bool:
        """Return whether the statement may have been committed."""
        pattern = f"{COMMIT_STATE_UNKNOWN}|{POST_FAILED}|{SESSION_GONE}"
        return self.engine_gone or re.search(pattern, str(self)) is not None

    @property
    def is_conflict(self) -> bool:
        """Return whether the commit conflicted with another writer's."""
        return re.search(CONFLICT, str(self)) is not None


@contextmanager
def explain() -> Iterator[None]:
    """Convert errors of Spark's client to StatementError.

    The client has few exception classes, so an error's condition or text identifies it.

    Raises:
        StatementError: the block raised an error of Spark or gRPC.
    """
    import grpc

    try:
        yield
    except _client_errors() as error:
        if _connection_lost(error):
            raise _engine_gone(str(error)) from error
        broken = re.search(BROKEN_CLASS, str(error)) is not None
        message = describe(str(error))
        raise StatementError(message, error.getCondition(), engine_gone=broken) from error
    except grpc.RpcError as error:
        details = _details(error)
        # UNKNOWN is an error of the server that Spark has no class for.
        if error.code() is grpc.StatusCode.UNKNOWN and NO_DETAILS not in details:
            raise StatementError(describe(details)) from error
        raise _engine_gone(details) from error
    except ValueError as error:
        if CLOSED_CHANNEL not in str(error):
            raise
        raise _engine_gone(str(error)) from error


def _client_errors() -> tuple[type[PySparkException], ...]:
    """Return the exceptions of Spark's client, which raises none before it is imported."""
    errors = sys.modules.get("pyspark.errors")
    return () if errors is None else (errors.PySparkException,)


def _connection_lost(error: Exception) -> bool:
    """Return whether the client did not reach the server; errors of the server have subclasses."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    own = type(error) is SparkConnectGrpcException
    return own and re.search(f"{ENGINE_GONE}|{NO_DETAILS}", str(error)) is not None


def _engine_gone(text: str) -> StatementError:
    message = FATAL if NO_DETAILS in text else _without_call(text).strip()
    return StatementError(f"{message}\n{ENGINE_GONE_ADVICE}", engine_gone=True)


def _without_call(text: str) -> str:
    """Return the error itself, if a text shows the whole call of gRPC."""
    details = GRPC_DETAILS.search(text)
    return details[1] if details else text


def describe(text: str) -> str:
    """Shorten the text of an error, and append what to do if the error is a known one.

    Args:
        text: the error's text; stack trace, query plan and secrets are removed.
    """
    text = without_secrets(_without_call(text))
    full = PLAN.sub(r"\1", STACK.sub("", text)).strip()
    message = JAVA_CLASS.sub("", full) or _of_class(full, text)
    message = OWN_EXCEPTION.sub("", message)
    message = _with_cause(message, text)
    if re.search(FORBIDDEN, message):
        message = STATE_UNKNOWN_SUFFIX.sub("", message)
    for pattern, advice in ADVICE:
        if re.search(pattern, text):
            return f"{message}\n{advice}"
    return message


def _of_class(name: str, text: str) -> str:
    """Name the class of an exception that has no message, and where Java raised it."""
    place = re.search(r"^\s*at ([\w.$/@-]+\(.*\))", text, re.MULTILINE)
    where = f", raised at {place[1]}" if place else ""
    return f"Spark failed with {name.strip('():')} and gave no message{where}." if name else ""


def _with_cause(message: str, text: str) -> str:
    """Return a message with the root cause that the text of its error names, if it lacks it."""
    causes = [cause for cause in CAUSE.findall(text) if cause not in message]
    if not causes or COMPLETE.match(message) or COMMIT_STATE_UNKNOWN in message:
        return message
    cause = (JAVA_CLASS.sub("", causes[-1]) or causes[-1])[:CAUSE_LENGTH]
    if cause in message:
        return message
    return cause if WRAPPER.match(message) else f"{message}\nCaused by: {cause}"


def _details(error: object) -> str:
    details = getattr(error, "details", None)
    return (details() if callable(details) else "") or str(error)
