"""Python models: the model's function runs here, its DataFrame on the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dbt_common.exceptions import DbtRuntimeError

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.engines.session import Session


def run_python_model(session: Session, name: str, code: str, view: str) -> None:
    """Run a compiled Python model and make what it returns a temporary view.

    Raises:
        DbtRuntimeError: the model failed, or returned something that is no table.
    """
    namespace: dict[str, Any] = {"__name__": f"dbt_model_{view}", "spark": session.spark}
    exec(compile(code, f"<python model {name}>", "exec"), namespace)
    frame = namespace["model"](namespace["dbtObj"](session.spark.table), session.spark)
    _as_frame(session, name, frame).createOrReplaceTempView(view)


def _as_frame(session: Session, name: str, frame: Any) -> Any:
    import pandas as pd
    import pyarrow as pa
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
