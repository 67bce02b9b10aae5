"""Open the source of files that a model's `stream(…)` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.fs as fs

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.files.json_files import (
    JsonFilesSource,
    are_lines,
)
from dbt.adapters.iceberg_stream.stream.sources.files.source import FilesSource

FORMATS = ("json", "csv", "parquet")


def files_source(
    spec: Mapping[str, Any],
    filesystem: fs.FileSystem,
    folder: str,
    required: Sequence[str] = (),
) -> FilesSource:
    """Return the source of a definition of type `files`.

    Args:
        spec: the definition, with `path` as a URL.
        filesystem: of the folder, for PyArrow.
        folder: the folder on that filesystem.
        required: columns that a JSON record must have.

    Raises:
        StreamError: the definition has errors.
    """
    file_format = str(spec.get("format") or "json")
    if file_format not in FORMATS:
        raise StreamError(f"{must_be_one_of('format', file_format, FORMATS)}.")
    if not spec.get("columns") and file_format != "parquet":
        raise StreamError(f"Files of {file_format} need `columns`, as `name type, name type`.")
    options = {str(k): str(v) for k, v in (spec.get("options") or {}).items()}
    common: dict[str, Any] = dict(
        path=str(spec["path"]),
        filesystem=filesystem,
        folder=folder,
        file_format=file_format,
        columns=spec.get("columns"),
        options=options,
        late_seconds=float(spec.get("late_seconds", 600.0)),
        required=tuple(required) if file_format == "json" else (),
    )
    is_lines = file_format == "json" and are_lines(options)
    return JsonFilesSource(**common) if is_lines else FilesSource(**common)
