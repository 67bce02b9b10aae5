"""Files that appear in a folder: JSON lines, CSV or Parquet."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as fs
from dbt.adapters.events.logging import AdapterLogger

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.arrow_parquet import (
    REBASE,
    parquet_arrow_schema,
    read_arrow,
)
from dbt.adapters.iceberg_stream.stream.sources.envelopes import spelled_as
from dbt.adapters.iceberg_stream.stream.sources.footers import Footers
from dbt.adapters.iceberg_stream.stream.sources.json_files import FILE, are_lines, json_records
from dbt.adapters.iceberg_stream.stream.sources.landed_files import (
    LandedFile,
    frontier_after,
    membership,
    names_of,
    ranks,
)
from dbt.adapters.iceberg_stream.stream.sources.source import (
    BAD,
    CHANGE,
    REASON,
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

logger = AdapterLogger("IcebergStream")
FORMATS = ("json", "csv", "parquet")
# A batch's bytes, where rows are not known before it is read.
BYTES_PER_ROW = 64
HIDDEN = (".", "_")
# What Spark takes for parts of a pattern.
PATTERN = re.compile(r"([][{}*?\\])")
NO_CHANGE = "named_struct('major', 0L, 'minor', 0L, 'deleted', false, 'truncated', false)"
# Files of one millisecond that are told apart by their path.
AT_ONCE = 100_000
# How long a list of the folder does for batches of files that are in it.
LISTED_SECONDS = 60.0
# How long it does to say what is waiting.
LAG_SECONDS = 5.0


@dataclass
class FilesSource:
    """A folder, read in the order in which its files were last modified, then of their names.

    The frontier is the last file's time and the names of those modified shortly before: a file may
    appear later than its time says, as one does that was moved into the folder.
    `{"settled": time, "last": time, "read": {time: names}, "files": count}`, times in milliseconds:
    what is older than settled is read, or has come too late; last is the newest file's. Names have
    NAME letters each, one behind the other, under their files' time rounded up to a second;
    `"names": {name: time}` has those that older versions have read.

    Attributes:
        path: the folder, as Spark names it.
        filesystem, folder: the same for PyArrow.
        file_format: json, csv or parquet.
        columns: of the records, as Spark's DDL; Parquet files know their own.
        options: of Spark's reader.
        late_seconds: how much later than its time a file may appear.
        required: columns that a JSON record must have, if only as null: a key that is absent is
            a mistake.
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
    has_truncates: bool = field(default=False, init=False)
    _known: tuple[str, StructType | None] = field(default=("", None), init=False)
    _definition: StructType | None = field(default=None, init=False)
    _rebase: str | None = field(default=None, init=False)
    _empty: set[str] = field(default_factory=set, init=False)
    _listed: tuple[float, list[LandedFile]] = field(default=(float("-inf"), []), init=False)

    @cached_property
    def _footers(self) -> Footers:
        return Footers(self.filesystem)

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
            more = (BAD, *((REASON,) if self._by_line else ()), WHERE) if self.has_bad else ()
            columns = ", ".join([self.columns, *(f"{name} string" for name in more)])
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
        return self._footers.columns(files[0]) if files else ""

    def present(self, lower: Frontier | None) -> Frontier | None:
        files = self._after(lower)
        return (
            {**frontier_after(lower, files, self.late_seconds), "read": names_of(files)}
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
        # While there are files of an earlier look, the folder is not listed for each batch.
        files = self._between(lower, until, LISTED_SECONDS) or self._between(lower, until)
        for file in files:
            size += file.size
            if chosen and (size > rows * BYTES_PER_ROW or self._differs(file, chosen)):
                break
            chosen.append(file)
        return frontier_after(lower, chosen, self.late_seconds) if chosen else None

    def is_behind(self, lower: Frontier, other: Frontier) -> bool:
        return any(map(membership(other), self._after(lower)))

    def read(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        files = self._whole(self._batch(lower, upper))
        return self._frame(spark, files) if files else self.empty(spark, lower, upper)

    def unreadable(self, lower: Frontier | None, upper: Frontier) -> dict[str, str]:
        if self.file_format != "parquet":
            return {}
        torn = self._footers.all_torn(self._batch(lower, upper))
        return {file.path: reason for file, reason in torn.items()}

    def arrow_rows(
        self, session: Session, lower: Frontier | None, upper: Frontier, pick: Pick
    ) -> Iterator[pa.RecordBatch] | None:
        if self.file_format != "parquet" or self.options or not self._is_corrected(session):
            return None
        spark, files = session.spark, self._whole(self._batch(lower, upper))
        if not files:
            return iter(())
        schema = parquet_arrow_schema(
            self._given(spark) if self.columns else self._schema(spark, files[0])
        )
        columns = pick(schema.names)
        if columns is None:
            return None
        majors = [
            file.modified * AT_ONCE + rank for file, rank in zip(files, ranks(files), strict=True)
        ]
        placed = list(zip((file.path for file in files), majors, strict=True))
        return read_arrow(self.filesystem, placed, schema, columns)

    def require(self, lower: Frontier | None, upper: Frontier) -> None:
        self._listed = float("-inf"), []
        self._batch(lower, upper)

    def _batch(self, lower: Frontier | None, upper: Frontier) -> list[LandedFile]:
        files = self._between(lower, upper, LISTED_SECONDS)
        if len(files) < upper["files"]:
            files = self._between(lower, upper)
        if len(files) < upper["files"]:
            raise StreamError(
                f"{upper['files'] - len(files)} files of {self.path} that a batch was to read have "
                "gone or changed. Put them back as they were, or rebuild the table with "
                "--full-refresh."
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
        chosen = frame.select("*", *where, change.alias(CHANGE))
        return chosen.drop(FILE) if self._by_line else chosen

    def _records(self, spark: SparkSession, files: Sequence[LandedFile]) -> DataFrame:
        """Columns of the records, and of bad ones; `_metadata` can be asked for."""
        paths = [self._spark_path(file) for file in files]
        reader = spark.read.options(**self.options)
        if self._by_line:
            names = self._given(spark).fieldNames()
            required = spelled_as(names, self.required)
            return json_records(spark, paths, str(self.columns), names, required, self.options)
        if self.has_bad:
            reader = reader.schema(f"{self.columns}, {BAD} string")
            reader = reader.option("columnNameOfCorruptRecord", BAD).option("mode", "PERMISSIVE")
        elif self.columns:
            reader = reader.schema(self.columns)
        elif self._knows_schemas:
            reader = reader.schema(self._schema(spark, files[0]))
        return reader.format(self.file_format).load(paths)

    @property
    def _by_line(self) -> bool:
        """Whether lines of JSON are looked at for the columns that they must have."""
        return bool(self.required) and self.file_format == "json" and are_lines(self.options)

    def _first_of(self, lower: Frontier | None, upper: Frontier | None) -> list[LandedFile]:
        """The file that says what the columns are: a batch's first, or the last that is there."""
        for files in (
            self._between(lower, upper, LISTED_SECONDS),
            self._between(lower, upper),
            reversed(self._after(None)),
        ):
            for file in files:
                if self._whole([file]):
                    return [file]
        return []

    @property
    def _knows_schemas(self) -> bool:
        """Whether files say what their columns are, and Spark is not to look at all of them."""
        merges = "mergeschema" in (name.lower() for name in self.options)
        return self.columns is None and self.file_format == "parquet" and not merges

    def _differs(self, file: LandedFile, others: Sequence[LandedFile]) -> bool:
        """Whether a file may not be in a batch with others: Spark would read all as the first."""
        if not self._knows_schemas or self._footers.torn(file):
            return False
        first = next((other for other in others if not self._footers.torn(other)), file)
        return self._footers.columns(first) != self._footers.columns(file)

    def _whole(self, files: Sequence[LandedFile]) -> list[LandedFile]:
        """Those of the files that are no torn Parquet files."""
        torn = self._footers.all_torn(files) if self.file_format == "parquet" else {}
        return [file for file in files if file not in torn]

    def _schema(self, spark: SparkSession, file: LandedFile) -> StructType:
        """What Spark takes for the schema of a file; asked once for files that are alike."""
        stored = self._footers.columns(file)
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

    def _major(self, files: Sequence[LandedFile]) -> Column:
        """What orders files: their time, then their path."""
        from pyspark.sql.connect import functions as f

        major = f.unix_millis(f.col("_metadata.file_modification_time")) * AT_ONCE
        ranked = zip(files, ranks(files), strict=True)
        tied = {file.path: rank for file, rank in ranked if rank}
        if not tied:
            return major
        decoded = f.url_decode(f.replace("_metadata.file_path", f.lit("+"), f.lit("%2B")))
        path = f.regexp_replace(decoded, "^[A-Za-z0-9]+:/*", "")
        pairs = [f.lit(part) for file, n in tied.items() for part in (file.lstrip("/"), n)]
        rank = f.element_at(f.create_map(*pairs), path)
        return major + f.coalesce(rank.cast("bigint"), f.lit(0).cast("bigint"))

    def _spark_path(self, file: LandedFile) -> str:
        below = file.path.removeprefix(self.folder.rstrip("/"))
        return PATTERN.sub(r"\\\1", self.path.rstrip("/") + below)

    def _between(
        self, lower: Frontier | None, upper: Frontier | None, age: float = 0.0
    ) -> list[LandedFile]:
        """Files of a batch, or all that come after a frontier, in their order."""
        files = self._after(lower, age)
        return files if upper is None else list(filter(membership(upper), files))

    def _after(self, frontier: Frontier | None, age: float = 0.0) -> list[LandedFile]:
        """Files that are not in the frontier, in their order.

        They are listed anew if that was so many seconds ago.
        """
        if frontier is not None and frontier["settled"] > time.time() * 1000:
            raise StreamError(
                f"The stream's progress in {self.path} is ahead of this machine's clock: it would "
                "pass over files that come now. Set the clock right; where a file with a time in "
                "the future was read by an older version, rebuild the table with --full-refresh."
            )
        listed, files = self._listed
        now = time.monotonic()
        if now - listed >= age:
            files = self._list()
            self._listed = now, files
        is_in = membership(frontier)
        return [file for file in files if not is_in(file)]

    def _list(self) -> list[LandedFile]:
        """All files of the folder, in their order."""
        selector = fs.FileSelector(self.folder, allow_not_found=True, recursive=True)
        try:
            infos = self.filesystem.get_file_info(selector)
        except OSError as error:
            raise StreamError(f"The folder {self.path} cannot be listed: {error}") from error
        found = [
            LandedFile(info.path, (info.mtime_ns or 0) // 1_000_000, info.size)
            for info in infos
            if info.is_file and not self._is_hidden(info.path)
        ]
        for file in found:
            # One that is being written has its content, and another time, later.
            if not file.size and file.path not in self._empty:
                self._empty.add(file.path)
                logger.warning(f"{file.path} is empty: it is left out.")
        found = [file for file in found if file.size]
        return sorted(found, key=lambda file: (file.modified, file.path))

    def _is_hidden(self, path: str) -> bool:
        below = path.removeprefix(self.folder.rstrip("/")).split("/")
        return any(part.startswith(HIDDEN) for part in below)


def files_source(
    spec: Mapping[str, Any],
    filesystem: fs.FileSystem,
    folder: str,
    required: Sequence[str] = (),
) -> FilesSource:
    """The folder that a source's definition names; `required` are columns that records must have.

    Raises:
        StreamError: the definition has errors.
    """
    file_format = str(spec.get("format") or "json")
    if file_format not in FORMATS:
        raise StreamError(f"{must_be_one_of('format', file_format, FORMATS)}.")
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
        required=tuple(required),
    )
