import pytest

from dbt.adapters.iceberg_stream.engines.errors import StatementError, describe

TRACE = "\n\nJVM stacktrace:\norg.apache.iceberg.X\n\tat org.apache.Y(Z.java:1)"


def test_no_stack_trace_and_no_java_class() -> None:
    text = "(org.apache.iceberg.exceptions.ValidationException) Found conflicting files" + TRACE
    message = describe(text)
    assert message.startswith("Found conflicting files")
    assert "Another writer committed" in message
    assert "org.apache" not in message


def test_no_plan() -> None:
    text = "[TABLE_OR_VIEW_NOT_FOUND] cannot be found; line 1 pos 14;\n'Project [*]\n+- Relation"
    assert describe(text) == "[TABLE_OR_VIEW_NOT_FOUND] cannot be found; line 1 pos 14"


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("java.io.IOException: No space left on device", "disk is full"),
        ("[SQLITE_CORRUPT] database disk image is malformed", "Restore catalog.db"),
        ("Malformed request: Cannot set last added schema: no schema has been added", "Run the model again"),
        ("java.lang.OutOfMemoryError: Java heap space", "driver_memory"),
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
