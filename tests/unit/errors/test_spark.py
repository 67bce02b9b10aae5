import pytest
from pyspark.errors.exceptions.connect import SparkConnectException

from dbt.adapters.iceberg_stream.errors.spark import StatementError, describe, explain

TRACE = "\n\nJVM stacktrace:\norg.apache.iceberg.X\n\tat org.apache.Y(Z.java:1)"


def test_no_stack_trace_and_no_java_class() -> None:
    text = "(org.apache.iceberg.exceptions.ValidationException) Found conflicting files" + TRACE
    message = describe(text)
    assert message.startswith("Found conflicting files")
    assert "conflicts with another writer's" in message
    assert "org.apache" not in message


def test_no_plan() -> None:
    text = "[TABLE_OR_VIEW_NOT_FOUND] cannot be found; line 1 pos 14;\n'Project [*]\n+- Relation"
    assert describe(text) == "[TABLE_OR_VIEW_NOT_FOUND] cannot be found; line 1 pos 14"


def test_a_failed_task_says_why() -> None:
    text = (
        "Job aborted due to stage failure: Lost task 0.0: java.io.IOException: Failed to close\n"
        "\tat a.B.c(B.java:1)\nCaused by: java.io.IOException: a.b.X: Access Denied\n"
        "\tat a.B.c(B.java:1)\nCaused by: a.b.X: Access Denied (Service: S3, Status Code: 403)\n"
    )
    assert "\nCaused by: Access Denied (Service: S3" in describe(text)
    assert "The storage refused the credentials" in describe(text)


CAST = "[CAST_INVALID_INPUT] The value 'two' of the type STRING cannot be cast to INT."


@pytest.mark.parametrize(
    ("message", "causes", "expected"),
    [
        (
            "Exception thrown in awaitResult: ",
            [
                f"java.util.concurrent.ExecutionException: org.apache.spark.SparkX: {CAST}",
                f"org.apache.spark.SparkNumberFormatException: {CAST}",
            ],
            CAST,
        ),
        (
            "Exception thrown in awaitResult: ",
            ["java.io.FileNotFoundException: File /w/t/data/1.parquet does not exist"],
            "File /w/t/data/1.parquet does not exist",
        ),
        (
            "Writing job aborted",
            ["java.lang.NullPointerException"],
            "Writing job aborted\nCaused by: java.lang.NullPointerException",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file x.",
            ["java.io.IOException: not a Parquet file"],
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file x."
            "\nCaused by: not a Parquet file",
        ),
        (
            "[DIVIDE_BY_ZERO] Division by zero.",
            ["java.lang.ArithmeticException: / by zero"],
            "[DIVIDE_BY_ZERO] Division by zero.",
        ),
        (
            "Failed to close: Access Denied",
            ["a.b.X: Access Denied"],
            "Failed to close: Access Denied",
        ),
    ],
)
def test_what_another_error_wraps(message: str, causes: list[str], expected: str) -> None:
    trace = "\n\nJVM stacktrace:\norg.apache.spark.SparkException\n\tat a.B.c(B.java:1)\n"
    text = (
        message + trace + "".join(f"Caused by: {cause}\n\tat a.B(B.java:1)\n" for cause in causes)
    )
    assert describe(text) == expected


def test_a_refusal_that_comes_as_a_server_error_is_no_doubt() -> None:
    text = (
        "Service failed: 500: 'UPDATE_ENTITY' is not allowed for role 'rita' on content 's.t'\n"
        "Cannot determine whether the commit was successful or not.\nAt this time no files"
    )
    message = describe(text)
    assert "Cannot determine" not in message
    assert "nothing was changed" in message
    failed = text.replace("is not allowed for role", "broke for")
    assert "Cannot determine" in describe(failed)


def test_the_storage_is_not_the_engine() -> None:
    text = (
        "Job aborted due to stage failure: Lost task 0.0\n\tat a.B.c(B.java:1)\nCaused by: "
        "a.SdkClientException: Unable to execute HTTP request: Connection refused (Attempts: 6)\n"
    )
    error = StatementError(describe(text))
    assert "The storage does not answer" in str(error)
    assert not error.engine_gone
    assert not error.commit_state_unknown


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("java.io.IOException: No space left on device", "disk is full"),
        ("[SQLITE_CORRUPT] database disk image is malformed", "Restore catalog.db"),
        ("Malformed request: Cannot set last added schema: no schema has been added", "Run the model again"),
        ("java.lang.OutOfMemoryError: Java heap space", "driver_memory"),
        ("Cannot downgrade v3 table to v2", "Set `format_version` to that version"),
        ("[MERGE_CARDINALITY_VIOLATION] The ON search condition", "one row for each key"),
    ],
)  # fmt: skip
def test_cures(text: str, cure: str) -> None:
    assert cure in describe(text)


def test_an_error_without_a_known_cure_is_itself() -> None:
    assert describe("[DIVIDE_BY_ZERO] Division by zero.") == "[DIVIDE_BY_ZERO] Division by zero."


def test_canceled_is_told_by_condition() -> None:
    assert StatementError("x", "OPERATION_CANCELED").canceled
    assert not StatementError("canceled").canceled


def test_a_catalog_that_is_down_is_not_the_engine() -> None:
    text = (
        "org.apache.iceberg.exceptions.RESTException: Error occurred while processing GET request"
    )
    text += "\n\nJVM stacktrace:\nCaused by: HttpHostConnectException: Connection refused"
    error = StatementError(describe(text))
    assert "The catalog does not answer Spark" in str(error)
    assert not error.engine_gone


def test_a_session_that_is_gone_leaves_the_outcome_open() -> None:
    assert StatementError(describe("[INVALID_HANDLE.SESSION_CHANGED] …")).commit_state_unknown


def test_only_a_refusal_of_the_catalog_names_the_principal() -> None:
    assert "wanda" not in str(StatementError("Connection refused").for_principal("wanda"))


def test_our_own_words_of_a_task() -> None:
    text = (
        "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
        'Traceback (most recent call last):\n  File "a.py", line 81, in run\n'
        "dbt.adapters.iceberg_stream.stream.sources.iceberg.file_rows.Unreadable: The file f is gone.\n"
        "\n\nJVM stacktrace:\norg.apache.spark.api.python.PythonException: …"
    )
    assert describe(text) == "The file f is gone."


def test_a_function_returns_a_value_of_another_type() -> None:
    text = (
        "An exception was thrown from the Python worker. Please see the stack trace below.\n"
        'Traceback (most recent call last):\n  File "pyarrow/error.pxi", line 92, in check\n'
        "pyarrow.lib.ArrowInvalid: Failed to parse string: 'x' as a scalar of type int32"
    )
    assert "correct the function, or the data type of its `returns`" in describe(text)


def test_a_class_that_stays_unusable() -> None:
    text = (
        "Job aborted due to stage failure: java.lang.NoClassDefFoundError: "
        "Could not initialize class org.apache.iceberg.formats.FormatModelRegistry"
    )
    with (
        pytest.raises(StatementError, match="the next command starts a new one") as error,
        explain(),
    ):
        raise SparkConnectException(text)
    assert error.value.engine_gone
    own = "java.lang.NoClassDefFoundError: Could not initialize class com.shop.Prices"
    with pytest.raises(StatementError) as of_user, explain():
        raise SparkConnectException(own)
    assert not of_user.value.engine_gone


def test_an_exception_without_a_message() -> None:
    name = "java.nio.BufferUnderflowException"
    place = "java.base/java.nio.Buffer.nextGetIndex(Buffer.java:699)"
    said = f"Spark failed with {name} and gave no message"
    text = f"({name}) \n\nJVM stacktrace:\n{name}\n\tat {place}\n\tat org.x.Y.z(Y.java:1)"
    assert describe(text) == f"{said}, raised at {place}."
    assert describe(name) == f"{said}."
    assert describe("") == ""
