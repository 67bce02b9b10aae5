"""Python models: the model's function runs here, its DataFrame on the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from dbt_common.exceptions import DbtRuntimeError

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.engines.session import Session


def run_python_model(session: Session, name: str, code: str) -> Any:
    """What a compiled Python model returns."""
    namespace: dict[str, Any] = {"__name__": f"dbt_{name}", "spark": session.spark}
    exec(compile(code, f"<python model {name}>", "exec"), namespace)
    return namespace["model"](namespace["dbtObj"](session.spark.table), session.spark)


def make_view(session: Session, name: str, frame: Any, view: str) -> None:
    """Make what a model returned a temporary view.

    Raises:
        DbtRuntimeError: it is no table.
    """
    _as_frame(session, name, frame).createOrReplaceTempView(view)


def local_rows(frame: Any) -> pa.Table | None:
    """What a model returned, if its rows are here; with the types that Spark gives them.

    None for Spark's frames, and for values that only Spark may make something of.
    """
    import pandas as pd

    if isinstance(frame, pd.DataFrame):
        try:
            frame = pa.Table.from_pandas(frame, preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            return None
    if not isinstance(frame, pa.Table):
        return None
    for at, field in enumerate(frame.schema):
        if pa.types.is_timestamp(field.type):
            # Without a zone they are UTC, as in the engine's sessions.
            utc = frame.column(at).cast(pa.timestamp(field.type.unit, "UTC"))
            frame = frame.set_column(at, field.name, utc)
    return frame.replace_schema_metadata()


def _as_frame(session: Session, name: str, frame: Any) -> Any:
    import pandas as pd
    from pyspark.sql.connect.dataframe import DataFrame

    if isinstance(frame, DataFrame):
        return frame
    if isinstance(frame, pd.DataFrame | pa.Table):
        return session.spark.createDataFrame(frame)
    if hasattr(frame, "to_spark"):
        return frame.to_spark()
    raise DbtRuntimeError(
        f"The Python model {name} returned {type(frame).__name__}: return a Spark, pandas or "
        "pandas-on-Spark DataFrame, or a pyarrow Table"
    )
