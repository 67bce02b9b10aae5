"""Files that appear in a folder: JSON lines, CSV or Parquet."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.plain_parquet import (
    REBASE,
    plain_schema,
    read_plain,
)
from dbt.adapters.iceberg_stream.stream.sources.source import (
    BAD,
    CHANGE,
    WHERE,
    Frontier,
    Lag,
    Pick,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.column import Column
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

    from dbt.adapters.iceberg_stream.engines.session import Session

# Files whose columns are remembered.
KNOWN_SCHEMAS = 10_000
FORMATS = ("json", "csv", "parquet")
# A batch's bytes, where rows are not known before it is read.
BYTES_PER_ROW = 64
HIDDEN = (".", "_")
NO_CHANGE = "named_struct('major', 0L, 'minor', 0L, 'deleted', false, 'truncated', false)"
# Files of one millisecond that are told apart by their path.
AT_ONCE = 100_000


@dataclass(frozen=True)
class _File:
    path: str
    modified: int
    size: int

    @property
    def name(self) -> str:
        """Short enough to be remembered."""
        return hashlib.sha256(self.path.encode()).hexdigest()[:10]


@dataclass
class FilesSource:
    """A folder, read in the order in which its files were last modified, then of their names.

    The frontier is the last file's time and the names of those modified shortly before: a file may
    appear later than its time says, as one does that was moved into the folder.
    `{"settled": milliseconds, "names": {name: milliseconds}, "files": count}`: what is older than
    settled is read, or has come too late.

    Attributes:
        path: the folder, as Spark names it.
        filesystem, folder: the same for PyArrow.
        file_format: json, csv or parquet.
        columns: of the records, as Spark's DDL; Parquet files know their own.
        options: of Spark's reader.
        late_seconds: how much later than its time a file may appear.
    """

    path: str
    filesystem: fs.FileSystem
    folder: str
    file_format: str
    columns: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    late_seconds: float = 600.0
    ordered: bool = False
    has_truncates: bool = field(default=False, init=False)
    _known: tuple[str, StructType | None] = field(default=("", None), init=False)
    _definition: StructType | None = field(default=None, init=False)
    _rebase: str | None = field(default=None, init=False)
    _schemas: dict[str, str] = field(default_factory=dict, init=False)

    @property
    def of_rows(self) -> bool:
        return False

    @property
    def has_bad(self) -> bool:
        return self.file_format != "parquet"

    def empty(
        self, spark: SparkSession, lower: Frontier | None = None, upper: Frontier | None = None
    ) -> DataFrame:
        if self.columns:
            columns = (
                f"{self.columns}, {BAD} string, {WHERE} string" if self.has_bad else self.columns
            )
            frame = spark.createDataFrame([], columns)
        else:
            files = self._first_of(lower, upper)
            if not files:
                raise StreamError(
                    f"{self.path} has no files yet, so the columns are not known. Put a first file "
                    "there, or give `columns`."
                )
            reader = spark.read.options(**self.options)
            frame = reader.parquet(self._spark_path(files[0])).where("false")
        return frame.selectExpr("*", f"{NO_CHANGE} as {CHANGE}")

    def schema_id(self, lower: Frontier | None, upper: Frontier | None = None) -> str:
        if not self._knows_schemas:
            return ""
        files = self._first_of(lower, upper)
        return self._schema_text(files[0]) if files else ""

    def present(self, lower: Frontier | None) -> Frontier | None:
        files = self._after(lower)
        return {**self._frontier(lower, files), "names": _names(files)} if files else None

    def mint(
        self,
        lower: Frontier | None,
        rows: int,
        until: Frontier | None = None,
        whole: bool = False,
    ) -> Frontier | None:
        chosen: list[_File] = []
        size = 0
        for file in self._between(lower, until):
            size += file.size
            if chosen and (size > rows * BYTES_PER_ROW or self._differ(chosen[0], file)):
                break
            chosen.append(file)
        return self._frontier(lower, chosen) if chosen else None

    def is_behind(self, lower: Frontier, other: Frontier) -> bool:
        return any(self._is_in(file, other) for file in self._after(lower))

    def read(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        return self._frame(spark, self._batch(lower, upper))

    def plain_rows(
        self, session: Session, lower: Frontier | None, upper: Frontier, pick: Pick
    ) -> Iterator[pa.RecordBatch] | None:
        if self.file_format != "parquet" or self.options or not self._is_corrected(session):
            return None
        spark, files = session.spark, self._batch(lower, upper)
        schema = plain_schema(self._given(spark) if self.columns else self._schema(spark, files[0]))
        columns = pick(schema.names)
        if columns is None:
            return None
        majors = [
            file.modified * AT_ONCE + rank for file, rank in zip(files, _ranks(files), strict=True)
        ]
        placed = list(zip((file.path for file in files), majors, strict=True))
        return read_plain(self.filesystem, placed, schema, columns)

    def _batch(self, lower: Frontier | None, upper: Frontier) -> list[_File]:
        files = self._between(lower, upper)
        if len(files) < upper["files"]:
            raise StreamError(
                f"{upper['files'] - len(files)} files of {self.path} that a batch was to read have "
                "gone or changed. Put them back as they were, or begin anew with --full-refresh."
            )
        return files

    def lag(self, frontier: Frontier | None) -> Lag:
        return Lag(len(self._after(frontier)), "files")

    def _frame(self, spark: SparkSession, files: Sequence[_File]) -> DataFrame:
        from pyspark.sql.connect import functions as f

        reader = spark.read.options(**self.options)
        if self.has_bad:
            reader = reader.schema(f"{self.columns}, {BAD} string")
            reader = reader.option("columnNameOfCorruptRecord", BAD).option("mode", "PERMISSIVE")
        elif self.columns:
            reader = reader.schema(self.columns)
        elif self._knows_schemas:
            reader = reader.schema(self._schema(spark, files[0]))
        frame = reader.format(self.file_format).load([self._spark_path(file) for file in files])
        where = [f.col("_metadata.file_path").alias(WHERE)] if self.has_bad else []
        change = f.struct(
            self._major(files).alias("major"),
            f.monotonically_increasing_id().alias("minor"),
            f.lit(False).alias("deleted"),
            f.lit(False).alias("truncated"),
        )
        return frame.select("*", *where, change.alias(CHANGE))

    def _first_of(self, lower: Frontier | None, upper: Frontier | None) -> list[_File]:
        """The file that says what the columns are: a batch's first, or the last that is there."""
        return self._between(lower, upper)[:1] or self._after(None)[-1:]

    @property
    def _knows_schemas(self) -> bool:
        """Whether files say what their columns are, and Spark is not to look at all of them."""
        merges = "mergeschema" in (name.lower() for name in self.options)
        return self.columns is None and self.file_format == "parquet" and not merges

    def _differ(self, file: _File, other: _File) -> bool:
        """Whether files may not be in one batch: Spark would read them all as the first."""
        return self._knows_schemas and self._schema_text(file) != self._schema_text(other)

    def _schema_text(self, file: _File) -> str:
        """The columns of a Parquet file."""
        known = self._schemas.get(file.name)
        if known is None:
            try:
                with self.filesystem.open_input_file(file.path) as opened:
                    schema = pq.read_schema(opened)
            except (OSError, pa.ArrowException) as error:
                raise StreamError(f"The file {file.path} cannot be read: {error}") from error
            known = schema.remove_metadata().to_string(show_field_metadata=False)
            if len(self._schemas) >= KNOWN_SCHEMAS:
                self._schemas.clear()
            self._schemas[file.name] = known
        return known

    def _schema(self, spark: SparkSession, file: _File) -> StructType:
        """What Spark takes for the schema of a file; asked once for files that are alike."""
        stored = self._schema_text(file)
        known, schema = self._known
        if schema is None or stored != known:
            schema = spark.read.options(**self.options).parquet(self._spark_path(file)).schema
            self._known = stored, schema
        return schema

    def _is_corrected(self, session: Session) -> bool:
        """Whether Spark, too, takes days and times as the format has them."""
        if self._rebase is None:
            self._rebase = str(session.spark.conf.get(REBASE)).upper()
        return self._rebase != "LEGACY"

    def _given(self, spark: SparkSession) -> StructType:
        """What the source's definition says of the columns; the server is asked once."""
        if self._definition is None:
            self._definition = spark.createDataFrame([], str(self.columns)).schema
        return self._definition

    def _major(self, files: Sequence[_File]) -> Column:
        """What orders files: their time, then their path."""
        from pyspark.sql.connect import functions as f

        major = f.unix_millis(f.col("_metadata.file_modification_time")) * AT_ONCE
        ranks = zip(files, _ranks(files), strict=True)
        tied = {file.path: rank for file, rank in ranks if rank}
        if not tied:
            return major
        decoded = f.url_decode(f.replace("_metadata.file_path", f.lit("+"), f.lit("%2B")))
        path = f.regexp_replace(decoded, "^[A-Za-z0-9]+:/*", "")
        pairs = [f.lit(part) for file, n in tied.items() for part in (file.lstrip("/"), n)]
        rank = f.element_at(f.create_map(*pairs), path)
        return major + f.coalesce(rank.cast("bigint"), f.lit(0).cast("bigint"))

    def _spark_path(self, file: _File) -> str:
        return self.path.rstrip("/") + file.path.removeprefix(self.folder.rstrip("/"))

    def _between(self, lower: Frontier | None, upper: Frontier | None) -> list[_File]:
        """Files of a batch, or all that come after a frontier, in their order."""
        files = self._after(lower)
        return files if upper is None else [file for file in files if self._is_in(file, upper)]

    def _after(self, frontier: Frontier | None) -> list[_File]:
        """Files that are not in the frontier, in their order."""
        selector = fs.FileSelector(self.folder, allow_not_found=True, recursive=True)
        try:
            infos = self.filesystem.get_file_info(selector)
        except OSError as error:
            raise StreamError(f"The folder {self.path} cannot be listed: {error}") from error
        found = [
            _File(info.path, (info.mtime_ns or 0) // 1_000_000, info.size)
            for info in infos
            if info.is_file and not self._is_hidden(info.path)
        ]
        return sorted(
            (file for file in found if not self._is_in(file, frontier)),
            key=lambda file: (file.modified, file.path),
        )

    def _is_in(self, file: _File, frontier: Frontier | None) -> bool:
        if frontier is None:
            return False
        return file.modified < frontier["settled"] or file.name in frontier["names"]

    def _is_hidden(self, path: str) -> bool:
        below = path.removeprefix(self.folder.rstrip("/")).split("/")
        return any(part.startswith(HIDDEN) for part in below)

    def _frontier(self, lower: Frontier | None, files: Sequence[_File]) -> Frontier:
        """The frontier behind files, which are the oldest of those not read yet."""
        names: dict[str, int] = {} if lower is None else dict(lower["names"])
        names |= _names(files)
        settled = max(names.values()) - int(self.late_seconds * 1000)
        if lower is not None:
            settled = max(settled, lower["settled"])
        kept = {name: modified for name, modified in names.items() if modified >= settled}
        return {"settled": settled, "names": kept, "files": len(files)}


def _ranks(files: Sequence[_File]) -> list[int]:
    """What tells files of one millisecond apart."""
    ranks = [0]
    for before, file in pairwise(files):
        ranks.append(ranks[-1] + 1 if file.modified == before.modified else 0)
    return ranks


def _names(files: Sequence[_File]) -> dict[str, int]:
    return {file.name: file.modified for file in files}


def files_source(spec: Mapping[str, Any], filesystem: fs.FileSystem, folder: str) -> FilesSource:
    """The folder that a source's definition names.

    Raises:
        StreamError: the definition has faults.
    """
    file_format = str(spec.get("format") or "json")
    if file_format not in FORMATS:
        raise StreamError(f"`format: {file_format}` is none of {', '.join(FORMATS)}.")
    if not spec.get("columns") and file_format != "parquet":
        raise StreamError(f"Files of {file_format} need `columns`, as `name type, name type`.")
    return FilesSource(
        path=str(spec["path"]),
        filesystem=filesystem,
        folder=folder,
        file_format=file_format,
        columns=spec.get("columns"),
        options={str(k): str(v) for k, v in (spec.get("options") or {}).items()},
        late_seconds=float(spec.get("late_seconds", 600.0)),
    )
