"""Files that land in a folder: JSON lines, CSV or Parquet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as fs

from dbt.adapters.iceberg_stream.catalog.locations import spark_path
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.files.arrow_parquet import (
    REBASE,
    parquet_arrow_schema,
    read_arrow,
)
from dbt.adapters.iceberg_stream.stream.sources.files.footers import Footers
from dbt.adapters.iceberg_stream.stream.sources.files.landed_files import (
    LandedFile,
    frontier_after,
    names_by_second,
    ranks,
    read_check,
)
from dbt.adapters.iceberg_stream.stream.sources.source import (
    BAD,
    CHANGE,
    NO_CHANGE,
    WHERE,
    Frontier,
    Lag,
    Pick,
    Source,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.column import Column
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

    from dbt.adapters.iceberg_stream.engines.session import Session

logger = Logger()
# Converts a batch's rows to bytes, because rows cannot be counted before they are read.
BYTES_PER_ROW = 64
HIDDEN = (".", "_")
# Files with the same time in milliseconds, at most, that are ordered by their path.
FILES_PER_MILLISECOND = 100_000
# Age of a listing of the folder from which batches of files in it may be planned.
LISTING_SECONDS = 60.0
# Age of a listing from which the lag may be counted.
LAG_SECONDS = 5.0


@dataclass
class FilesSource(Source):
    """A folder, whose files are read in the order of their modification time, then of their path.

    The frontier is `{"settled": time, "last": time, "read": {time: names}, "files": count}`, with
    times in milliseconds since the epoch. Files older than `settled` are read, or have landed too
    late. `last` is the time of the newest file. `read` has the names of the files since `settled`,
    because a file may land later than its time, for example if it is moved into the folder. Names
    have NAME_LENGTH characters each and are concatenated, under their files' time rounded up to a
    second. `files` counts the batch. `"names": {name: time}` has the names of older versions.

    Attributes:
        path: the folder, for Spark.
        filesystem: the folder's filesystem, for PyArrow.
        folder: the folder on that filesystem.
        file_format: json, csv or parquet.
        columns: of the records, as Spark's DDL; None for the columns of Parquet files.
        options: of Spark's reader.
        late_seconds: how much later than its time a file may land.
        required: columns that a JSON record must have.
        ordered: whether rows come in the order of the files.
    """

    path: str
    filesystem: fs.FileSystem
    folder: str
    file_format: str
    columns: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    late_seconds: float = 600.0
    required: tuple[str, ...] = ()
    ordered: bool = False
    _schema_cache: tuple[str, StructType | None] = field(default=("", None), init=False)
    _definition: StructType | None = field(default=None, init=False)
    _rebase: str | None = field(default=None, init=False)
    _empty: set[str] = field(default_factory=set, init=False)
    _listing: tuple[float, list[LandedFile]] = field(default=(float("-inf"), []), init=False)

    @cached_property
    def _footers(self) -> Footers:
        return Footers(self.filesystem)

    @property
    def has_bad(self) -> bool:
        return self.file_format != "parquet"

    def empty(
        self, spark: SparkSession, lower: Frontier | None = None, upper: Frontier | None = None
    ) -> DataFrame:
        if self.columns:
            added = (BAD, WHERE) if self.has_bad else ()
            columns = ", ".join([self.columns, *(f"{name} string" for name in added)])
            frame = spark.createDataFrame([], columns)
        else:
            files = self._first_of(lower, upper)
            if not files:
                raise StreamError(
                    f"{self.path} has no files yet, so its columns are not known. Put a file "
                    "there, or set the source's `columns`."
                )
            reader = spark.read.options(**self.options)
            frame = reader.parquet(self.path_of(files[0])).where("false")
        return frame.selectExpr("*", f"{NO_CHANGE} as {CHANGE}")

    def schema_id(self, lower: Frontier | None, upper: Frontier | None = None) -> str:
        if not self._has_file_schemas:
            return ""
        files = self._first_of(lower, upper)
        return self._footers.columns(files[0]) if files else ""

    def present(self, lower: Frontier | None) -> Frontier | None:
        files = self._after(lower)
        return (
            {**frontier_after(lower, files, self.late_seconds), "read": names_by_second(files)}
            if files
            else None
        )

    def plan_batch(
        self,
        lower: Frontier | None,
        rows: int,
        until: Frontier | None = None,
        whole: bool = False,
    ) -> Frontier | None:
        chosen: list[LandedFile] = []
        size = 0
        # A recent listing is used as long as it has files, instead of a listing for each batch.
        files = self._between(lower, until, LISTING_SECONDS) or self._between(lower, until)
        for file in files:
            size += file.size
            if chosen and (size > rows * BYTES_PER_ROW or self._has_other_columns(file, chosen)):
                break
            chosen.append(file)
        return frontier_after(lower, chosen, self.late_seconds) if chosen else None

    def is_behind(self, lower: Frontier, other: Frontier) -> bool:
        return any(map(read_check(other), self._after(lower)))

    def read(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        files = self._complete(self.batch(lower, upper))
        return self._frame(spark, files) if files else self.empty(spark, lower, upper)

    def unreadable(self, lower: Frontier | None, upper: Frontier) -> dict[str, str]:
        if self.file_format != "parquet":
            return {}
        incomplete = self._footers.incomplete_files(self.batch(lower, upper))
        return {file.path: reason for file, reason in incomplete.items()}

    def arrow_rows(
        self, session: Session, lower: Frontier | None, upper: Frontier, pick: Pick
    ) -> Iterator[pa.RecordBatch] | None:
        if self.file_format != "parquet" or self.options or not self._reads_gregorian(session):
            return None
        spark, files = session.spark, self._complete(self.batch(lower, upper))
        if not files:
            return iter(())
        schema = parquet_arrow_schema(
            self._declared_schema(spark) if self.columns else self._schema(spark, files[0])
        )
        columns = pick(schema)
        if columns is None:
            return None
        with_majors = [(file.path, major) for file, major in zip(files, majors(files), strict=True)]
        return read_arrow(self.filesystem, with_majors, schema, columns)

    def require(self, lower: Frontier | None, upper: Frontier) -> None:
        self._listing = float("-inf"), []
        self.batch(lower, upper)

    def batch(self, lower: Frontier | None, upper: Frontier) -> list[LandedFile]:
        """Return the files of a batch, in their order.

        Args:
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at.

        Raises:
            StreamError: some are gone.
        """
        files = self._between(lower, upper, LISTING_SECONDS)
        if len(files) < upper["files"]:
            files = self._between(lower, upper)
        if len(files) < upper["files"]:
            raise StreamError(
                f"Files in {self.path} that the stream has planned to read are gone or were "
                f"changed ({upper['files'] - len(files)} of {upper['files']}). Restore them and "
                "run the model again, or rebuild the table with --full-refresh."
            )
        return files

    def lag(self, frontier: Frontier | None) -> Lag:
        return Lag(len(self._after(frontier, LAG_SECONDS)), "files")

    def _frame(self, spark: SparkSession, files: Sequence[LandedFile]) -> DataFrame:
        from pyspark.sql.connect import functions as f

        frame = self._records(spark, files)
        where = [f.col("_metadata.file_path").alias(WHERE)] if self.has_bad else []
        change = f.struct(
            self._major(files).alias("major"),
            f.monotonically_increasing_id().alias("minor"),
            f.lit(False).alias("deleted"),
            f.lit(False).alias("truncated"),
        )
        columns = [f.col(quote(name)) for name in frame.columns]
        if self.required:
            # Spark does not tell a key that is missing from one that is null.
            has_keys = f.concat(*(f.col(quote(name)).cast("string") for name in self.required))
            absent = f.when(has_keys.isNull(), f.to_json(f.struct(*columns)))
            columns[-1] = f.coalesce(columns[-1], absent).alias(BAD)
        return frame.select(*columns, *where, change.alias(CHANGE))

    def _records(self, spark: SparkSession, files: Sequence[LandedFile]) -> DataFrame:
        """Return records, BAD behind them; `_metadata` of their files can be selected."""
        paths = [self.path_of(file) for file in files]
        reader = spark.read.options(**self.options)
        if self.has_bad:
            reader = reader.schema(f"{self.columns}, {BAD} string")
            reader = reader.option("columnNameOfCorruptRecord", BAD).option("mode", "PERMISSIVE")
        elif self.columns:
            reader = reader.schema(self.columns)
        elif self._has_file_schemas:
            reader = reader.schema(self._schema(spark, files[0]))
        return reader.format(self.file_format).load(paths)

    def _first_of(self, lower: Frontier | None, upper: Frontier | None) -> list[LandedFile]:
        """Return the file that the columns are taken from: a batch's first, or else the newest."""
        for files in (
            self._between(lower, upper, LISTING_SECONDS),
            self._between(lower, upper),
            reversed(self._after(None)),
        ):
            for file in files:
                if self._complete([file]):
                    return [file]
        return []

    @property
    def _has_file_schemas(self) -> bool:
        """Return whether one file has the columns: without `columns` and Spark's `mergeSchema`."""
        merges = "mergeschema" in (name.lower() for name in self.options)
        return self.columns is None and self.file_format == "parquet" and not merges

    def _has_other_columns(self, file: LandedFile, others: Sequence[LandedFile]) -> bool:
        """Return whether a file has other columns than a batch, which Spark reads as its first."""
        if not self._has_file_schemas or self._footers.incomplete_reason(file):
            return False
        first = next(
            (other for other in others if not self._footers.incomplete_reason(other)), file
        )
        return self._footers.columns(first) != self._footers.columns(file)

    def _complete(self, files: Sequence[LandedFile]) -> list[LandedFile]:
        """Return files without incomplete Parquet files."""
        if self.file_format != "parquet":
            return list(files)
        incomplete = self._footers.incomplete_files(files)
        return [file for file in files if file not in incomplete]

    def _schema(self, spark: SparkSession, file: LandedFile) -> StructType:
        """Return Spark's schema of a file; the last one is cached, for files with its columns."""
        stored = self._footers.columns(file)
        cached, schema = self._schema_cache
        if schema is None or stored != cached:
            schema = spark.read.options(**self.options).parquet(self.path_of(file)).schema
            self._schema_cache = stored, schema
        return schema

    def _reads_gregorian(self, session: Session) -> bool:
        """Return whether Spark reads dates in the Gregorian calendar, as PyArrow does."""
        if self._rebase is None:
            self._rebase = str(session.spark.conf.get(REBASE)).upper()
        return self._rebase != "LEGACY"

    def _declared_schema(self, spark: SparkSession) -> StructType:
        """Return Spark's schema of the definition's `columns`, which the server parses once."""
        if self._definition is None:
            self._definition = spark.createDataFrame([], str(self.columns)).schema
        return self._definition

    def _major(self, files: Sequence[LandedFile]) -> Column:
        """Return the column that orders files: by their time, then by their path."""
        from pyspark.sql.connect import functions as f

        major = f.unix_millis(f.col("_metadata.file_modification_time")) * FILES_PER_MILLISECOND
        ranked = zip(files, ranks(files), strict=True)
        tied = {file.path: rank for file, rank in ranked if rank}
        if not tied:
            return major
        decoded = f.url_decode(f.replace("_metadata.file_path", f.lit("+"), f.lit("%2B")))
        path = f.regexp_replace(decoded, "^[A-Za-z0-9]+:/*", "")
        pairs = [f.lit(part) for file, n in tied.items() for part in (file.lstrip("/"), n)]
        rank = f.element_at(f.create_map(*pairs), path)
        return major + f.coalesce(rank.cast("bigint"), f.lit(0).cast("bigint"))

    def path_of(self, file: LandedFile) -> str:
        """Return the path of a file for Spark."""
        below = file.path.removeprefix(self.folder.rstrip("/"))
        return spark_path(self.path.rstrip("/") + below)

    def _between(
        self, lower: Frontier | None, upper: Frontier | None, age: float = 0.0
    ) -> list[LandedFile]:
        """Return the files of a batch, or all files after a frontier, in their order."""
        files = self._after(lower, age)
        return files if upper is None else list(filter(read_check(upper), files))

    def _after(self, frontier: Frontier | None, age: float = 0.0) -> list[LandedFile]:
        """Return the files that a frontier does not include, in their order.

        Args:
            frontier: the frontier; None for all files.
            age: seconds that the last listing of the folder may be old.
        """
        if frontier is not None and frontier["settled"] > time.time() * 1000:
            raise StreamError(
                f"The stream's progress in {self.path} is ahead of this machine's clock, so that "
                "the stream would skip files that land now. Correct the clock. If an older version "
                "has read a file with a time in the future, rebuild the table with --full-refresh."
            )
        listed_at, files = self._listing
        now = time.monotonic()
        if now - listed_at >= age:
            files = self._list()
            self._listing = now, files
        is_in = read_check(frontier)
        return [file for file in files if not is_in(file)]

    def _list(self) -> list[LandedFile]:
        """List all files of the folder, in their order."""
        selector = fs.FileSelector(self.folder, allow_not_found=True, recursive=True)
        try:
            infos = self.filesystem.get_file_info(selector)
        except OSError as error:
            raise StreamError(f"The folder {self.path} cannot be listed: {error}") from error
        files = [
            LandedFile(info.path, (info.mtime_ns or 0) // 1_000_000, info.size)
            for info in infos
            if info.is_file and not self._is_hidden(info.path)
        ]
        for file in files:
            # A file that is being written is read once it has content, under its new time.
            if not file.size and file.path not in self._empty:
                self._empty.add(file.path)
                logger.warning(f"{file.path} is empty and is skipped.")
        files = [file for file in files if file.size]
        return sorted(files, key=lambda file: (file.modified, file.path))

    def _is_hidden(self, path: str) -> bool:
        below = path.removeprefix(self.folder.rstrip("/")).split("/")
        return any(part.startswith(HIDDEN) for part in below)


def majors(files: Sequence[LandedFile]) -> list[int]:
    """Return the major of the changes in each file.

    Args:
        files: sorted by their time.
    """
    ranked = zip(files, ranks(files), strict=True)
    return [file.modified * FILES_PER_MILLISECOND + rank for file, rank in ranked]
