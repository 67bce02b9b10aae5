"""Run Python models: the model's function in this process, its DataFrame in Spark."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from dbt.adapters.base import BaseRelation
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.table_config import TableConfig
from dbt.adapters.iceberg_stream.engines.imports import load_pyspark
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError, explain
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.materializations.local_table import (
    TIMESTAMP_TYPE,
    build_from_rows,
)
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse


def build_python_model(
    context: MaterializationContext,
    relation: BaseRelation,
    code: str,
    layout: TableConfig,
    model: Mapping[str, Any],
    view: str,
) -> IcebergStreamResponse | None:
    """Run a Python model and build its table in one commit.

    Args:
        context: what the materialization needs of the adapter.
        relation: the model's table.
        code: the compiled model.
        layout: the table's layout.
        model: the model's node in dbt's graph.
        view: name of a temporary view for the rows, if Spark must write them.

    Returns:
        The commit; None if Spark must write the rows.

    Raises:
        DbtDatabaseError: the catalog or the storage refuses; nothing was written.
    """
    name = str(model["unique_id"])
    with context.database_errors(code):
        session = _own_session(context)
        frame = context.with_valid_token(lambda: run_python_model(session, name, code))
        rows = _utc_rows(session, frame)
    if rows is not None:
        response = build_from_rows(context, relation, rows, layout, model["config"], "ctas")
        if response is not None:
            return response
    result = frame if rows is None else rows
    with context.database_errors(code):
        _make_view(context, session, name, result, view)
    return None


def run_to_view(
    context: MaterializationContext, model: Mapping[str, Any], code: str, view: str
) -> None:
    """Run a Python model, and register its result as a temporary view.

    Args:
        context: what the materialization needs of the adapter.
        model: the model's node in dbt's graph.
        code: the compiled model.
        view: name of the view.
    """
    name = str(model["unique_id"])
    with context.database_errors(code):
        session = _own_session(context)
        code_of_model = str(model.get("raw_code")).lower()
        if ".this" in code_of_model or str(model["alias"]).lower() in code_of_model:
            context.note_own_table()
        frame = context.with_valid_token(lambda: run_python_model(session, name, code))
        rows = _utc_rows(session, frame)
        _make_view(context, session, name, frame if rows is None else rows, view)


def _make_view(
    context: MaterializationContext, session: Session, name: str, result: Any, view: str
) -> None:
    """Make what a model returned a temporary view, with a new token if the catalog refuses it.

    First in the session that the model had: another one lacks its checkpoints and larger local
    tables.
    """
    try:
        make_view(session, name, result, view)
    except StatementError as error:
        if not error.token_refused:
            raise
        context.with_valid_token(lambda: make_view(session, name, result, view))


def _own_session(context: MaterializationContext) -> Session:
    """Return a session for this model only: its code may change settings and functions."""
    session = context.session()
    context.discard_session()
    return session


def _utc_rows(session: Session, frame: Any) -> pa.Table | None:
    """Return the rows of `local_rows`, unless times without a zone keep none in this session."""
    return None if session.settings((TIMESTAMP_TYPE,)) else local_rows(frame)


def run_python_model(session: Session, name: str, code: str) -> Any:
    """Run a compiled Python model, and return its result.

    Args:
        session: the session that the model gets.
        name: the model's unique id.
        code: the compiled model.

    Raises:
        StatementError: Spark refuses what the model asks of it; says in which line.
        DbtRuntimeError: the model ends its process or cancels itself.
    """
    namespace: dict[str, Any] = {"__name__": f"dbt_{name}", "spark": session.spark}
    session.activate()
    file = f"<python model {name}>"
    try:
        with explain():
            exec(compile(code, file, "exec"), namespace)
            return namespace["model"](namespace["dbtObj"](session.spark.table), session.spark)
    except StatementError as error:
        cause = error.__cause__
        frames = traceback.walk_tb(cause.__traceback__ if cause else None)
        lines = [number for frame, number in frames if frame.f_code.co_filename == file]
        if lines:
            line = code.splitlines()[lines[-1] - 1].strip()
            error.add(f"Line {lines[-1]} of the compiled model: {line}")
        raise
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        # Such as SystemExit: dbt would wait for its thread forever.
        raise DbtRuntimeError(
            f"The Python model {name} raised {error!r}, which is no `Exception`. Return a table, "
            "or raise an `Exception`."
        ) from error


def make_view(session: Session, name: str, frame: Any, view: str) -> None:
    """Make what a model returned a temporary view.

    Raises:
        DbtRuntimeError: it is no table.
        StatementError: Spark refuses it.
    """
    session.activate()
    with explain():
        _as_frame(session, name, frame).createOrReplaceTempView(view)


def local_rows(frame: Any) -> pa.Table | None:
    """What a model returned, if its rows are here, with the types that Spark gives them.

    Times without a zone are UTC. None for Spark's frames, and for what only Spark can judge.
    """
    import pandas as pd

    load_pyspark()
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import TimeType

    if not isinstance(frame, pd.DataFrame | pa.Table):
        return None
    try:
        if isinstance(frame, pd.DataFrame):
            # Spark puts metrics into `attrs`, and PyArrow warns that it cannot keep them.
            frame = frame.copy(deep=False)
            frame.attrs = {}
            frame = pa.Table.from_pandas(frame, preserve_index=False)
            if any("timestamp" in str(f.type) for f in frame.schema if pa.types.is_nested(f.type)):
                return None  # which have no zone there
        schema = from_arrow_schema(frame.schema)
        if TimeType.__name__ in str(schema):
            return None  # Iceberg's Spark has no times of day
        return frame.cast(_without_metadata(to_arrow_schema(schema)))
    except (ValueError, TypeError, NotImplementedError):
        return None


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _as_frame(session: Session, name: str, frame: Any) -> Any:
    import pandas as pd

    load_pyspark()
    from pyspark.sql.connect.dataframe import DataFrame

    if isinstance(frame, pd.DataFrame | pa.Table):
        return session.spark.createDataFrame(frame)
    if not isinstance(frame, DataFrame) and hasattr(frame, "to_spark"):
        frame = frame.to_spark()
    if isinstance(frame, DataFrame):
        # The session that has made it has ended if the token was renewed since.
        return DataFrame(frame._plan, session.spark)
    raise DbtRuntimeError(
        f"The Python model {name} returned an object of type `{type(frame).__name__}`. Return a "
        "Spark, pandas or pandas-on-Spark DataFrame, or a PyArrow table."
    )
