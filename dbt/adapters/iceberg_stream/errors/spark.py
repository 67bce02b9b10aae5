"""Errors of Spark and Iceberg, in words that name the cause and the cure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from dbt.adapters.iceberg_stream.errors.redaction import without_secrets

CANCELED = "OPERATION_CANCELED"
STACK = re.compile(r"\n\s*(JVM stacktrace:|at [\w.$]+\().*", re.DOTALL)
# Spark adds the query's plan to errors of analysis.
PLAN = re.compile(r"(; line \d+ pos \d+);?\n.*", re.DOTALL)
# Of a task that failed Spark names what happened last; the first cause stands last.
CAUSE = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
CAUSE_LENGTH = 300
# An exception of our own in a task says all: the way to it through our code does not help.
OURS = re.compile(r"\A.*^dbt\.adapters\.iceberg_stream\.[\w.]+: ", re.DOTALL | re.MULTILINE)
JAVA_CLASS = re.compile(r"^\(?(?:[a-z_]\w*\.)+([A-Z]\w*)\)?:?\s*")

# The catalog's refusals, as Iceberg's REST client words them; the last one is Nessie's, which comes
# as a server error, so that Iceberg adds that it does not know what became of the commit.
FORBIDDEN = r"ForbiddenException|Forbidden:|is not authorized for op|is not allowed for role"
UNAUTHORIZED = r"NotAuthorizedException|Not authorized:"
REFUSAL = f"{FORBIDDEN}|{UNAUTHORIZED}|The catalog refused|does not accept the token"

# The server was lost, or has lost the session with what ran in it: in gRPC's words and Spark's.
ENGINE_GONE = r"failed to connect|Connection refused|UNAVAILABLE|Socket closed|Connection reset"
SESSION_GONE = r"INVALID_HANDLE\.SESSION|SESSION_CLOSED|SESSION_NOT_FOUND|SESSION_CHANGED"
SESSION_GONE += "|RESPONSE_ALREADY_RECEIVED|NO_ACTIVE_SESSION"
ENGINE_GONE_CURE = (
    "The connection to Spark is lost. An embedded engine's log is server.log in the project's "
    ".iceberg_stream folder; the next command starts a new one."
)
# The catalog's answer to a commit was lost.
LOST_ANSWER = "Cannot determine whether the commit was successful"

LOST_POST = "Error occurred while processing POST request"
# What Iceberg adds to it.
UNSURE = re.compile(rf"\n\s*{LOST_ANSWER}.*", re.DOTALL)

GRPC_DETAILS = re.compile(r'^\s*details = "(.+)"$', re.MULTILINE)
# gRPC has no class of its own for it.
CLOSED_CHANNEL = "Cannot invoke RPC"

KEYS_REFUSED = (
    "The storage refused the keys: those that the catalog gives out for this table, or that "
    "`catalog_properties` name. Ask the administrator of the catalog or of the storage."
)
NO_KEYS = (
    "The catalog gives out no keys for the storage. Put `s3.access-key-id` and "
    "`s3.secret-access-key` into `catalog_properties`, or allow `ambient_credentials`."
)
# A catalog that takes a role for each table was refused it.
CATALOG_WITHOUT_KEYS = r"Service: Sts, Status Code"

# Text of an error, and what a user can do about it.
CURES = (
    (
        r"Found conflicting files|Cannot commit|Commit failed|CommitFailedException"
        r"|has been updated by another process|no schema has been added|Table UUID does not match"
        r"|no current version id has been set"
        r"|Missing required files to delete|stale table metadata",
        "Another writer committed to it while this statement ran; nothing of it is visible. "
        "Run the model again.",
    ),
    (
        r"MERGE_CARDINALITY_VIOLATION",
        "Two rows of the model have the same unique_key, so it is undecided which one a row of "
        "the table becomes. Make the model return one row for each key.",
    ),
    (
        r"Cannot delete file where some, but not all, rows match filter",
        "The replaced range cuts through data files. Partition the table by the range's column.",
    ),
    (r"No space left on device|Disk quota exceeded", "The disk is full. Free space and run again."),
    (
        r"database is locked|SQLITE_BUSY",
        "Another process holds the SQLite catalog for long. Wait for it and run again.",
    ),
    (
        r"SQLITE_CORRUPT|SQLITE_NOTADB|database disk image is malformed|file is not a database",
        "The SQLite catalog is damaged. Restore catalog.db in the warehouse folder from a backup.",
    ),
    (
        r"View with same name already exists",
        "A view of this name stands in the way of the table: drop it, or build the table by a "
        "model, which replaces it.",
    ),
    (
        r"Table with same name already exists",
        "A table of this name stands in the way of the view: drop it, or build the view by a "
        "model, which replaces it.",
    ),
    (r"Service: S3, Status Code: 40[13]", KEYS_REFUSED),
    (
        CATALOG_WITHOUT_KEYS,
        "The catalog itself gets no keys for the storage: its own credentials or the role that it "
        "takes are wrong. Tell its administrator.",
    ),
    (r"Unable to load credentials from any of the providers", NO_KEYS),
    (
        "Unable to execute HTTP request",
        "The storage does not answer: check `s3.endpoint`, if you set it, and that it is running.",
    ),
    (
        FORBIDDEN,
        "The catalog refused it; nothing was changed. Ask its administrator for the privilege.",
    ),
    (
        UNAUTHORIZED,
        "The catalog does not accept the token: it may have expired, or be for another catalog.",
    ),
    (
        r"Failed to find data source: kafka|ClassNotFoundException: org.apache.spark.sql.kafka",
        "The Spark server has no Kafka source: put spark-sql-kafka-0-10 for its Spark version, and "
        "what it needs, on its class path.",
    ),
    (
        r"Cannot find catalog plugin class|CATALOG_NOT_FOUND|ClassNotFoundException: org.apache",
        "The Spark server has no Iceberg: put iceberg-spark-runtime for its Spark version on its "
        "class path.",
    ),
    (
        r"OutOfMemoryError|Java heap space",
        "The engine ran out of memory. Raise `driver_memory` in the profile.",
    ),
    (
        SESSION_GONE,
        "The Spark server has ended the session: it was restarted, or has timed the session out.",
    ),
    (
        r"RESTException|HttpHostConnectException",
        "The catalog does not answer Spark, or not as it should. Check that it is running.",
    ),
)


class StatementError(Exception):
    """A statement failed. The message is the cause and, where it is known, the cure."""

    def __init__(
        self, message: str, condition: str | None = None, engine_gone: bool = False
    ) -> None:
        super().__init__(message)
        self.condition = condition
        self.engine_gone = engine_gone

    def add(self, text: str) -> None:
        """Say more."""
        self.args = (f"{self}\n{text}",)

    @property
    def canceled(self) -> bool:
        return self.condition == CANCELED

    def for_principal(self, principal: str) -> StatementError:
        """The same error, saying whom the catalog refused, if it was the catalog."""
        asked = f"The catalog was asked as {principal}."
        if not principal or asked in str(self) or not re.search(REFUSAL, str(self)):
            return self
        text = f"{self}\n{asked}"
        return StatementError(text, self.condition, self.engine_gone)

    @property
    def token_refused(self) -> bool:
        """Whether the catalog no longer took the token, so that nothing was committed."""
        return re.search(UNAUTHORIZED, str(self)) is not None and not self.outcome_unknown

    @property
    def outcome_unknown(self) -> bool:
        """Whether the statement may have been committed all the same."""
        lost = re.search(f"{LOST_ANSWER}|{LOST_POST}|{SESSION_GONE}", str(self)) is not None
        return lost or self.engine_gone

    @property
    def is_conflict(self) -> bool:
        """Whether another writer was faster."""
        return re.search(CURES[0][0], str(self)) is not None


@contextmanager
def explain() -> Iterator[None]:
    """Turn what the client raises into a StatementError.

    The client raises a few classes only, so an error is known by its condition or its text.
    """
    import grpc
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if _connection_lost(error):
            raise _engine_gone(str(error)) from error
        raise StatementError(describe(str(error)), error.getCondition()) from error
    except grpc.RpcError as error:
        raise _engine_gone(_status(error)) from error
    except ValueError as error:
        if CLOSED_CHANNEL not in str(error):
            raise
        raise _engine_gone(str(error)) from error


def _connection_lost(error: Exception) -> bool:
    """Whether the server was not reached; what a server says has classes of its own."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    own = type(error) is SparkConnectGrpcException
    return own and re.search(ENGINE_GONE, str(error)) is not None


def _engine_gone(text: str) -> StatementError:
    # The client's own text shows the whole call; what happened are its details.
    details = GRPC_DETAILS.search(text)
    message = details[1] if details else text.strip()
    return StatementError(f"{message}\n{ENGINE_GONE_CURE}", engine_gone=True)


def describe(text: str) -> str:
    """The first part of an error's text, without stack trace, and the cure if we know one."""
    text = without_secrets(text)
    message = JAVA_CLASS.sub("", PLAN.sub(r"\1", STACK.sub("", text)).strip())
    message = OURS.sub("", message)
    causes = CAUSE.findall(text)
    if message.startswith("Job aborted") and causes:
        message += f"\nCaused by: {JAVA_CLASS.sub('', causes[-1])[:CAUSE_LENGTH]}"
    if re.search(FORBIDDEN, message):
        message = UNSURE.sub("", message)
    for pattern, cure in CURES:
        if re.search(pattern, text):
            return f"{message}\n{cure}"
    return message


def _status(error: object) -> str:
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if callable(code) and callable(details):
        return f"{code()}: {details()}"
    return str(error)
