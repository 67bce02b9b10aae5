"""Changes the rows of one data file: merges a source into it, or removes its deleted rows.

Worker code: the standard library, PyArrow and other worker code. It runs in this process, or is
sent to Spark's tasks by value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.tables.files.parquet import (
    ParquetOptions,
    RollingWriter,
    WrittenFile,
    writer_beside,
)
from dbt.adapters.iceberg_stream.tables.files.projection import with_constants
from dbt.adapters.iceberg_stream.tables.files.reader import (
    NO_ROWS,
    NotByRewriting,
    OldFile,
    read_rows,
    read_with_lineage,
    require_ids,
    row_numbers,
)
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.conditions import Condition
from dbt.adapters.iceberg_stream.tables.merge.rows import (
    Matches,
    Source,
    changed,
    new_versions,
    updated,
    without,
)


@dataclass(frozen=True)
class FileChange:
    """What becomes of a data file's rows.

    Attributes:
        location: of the file.
        matched: positions of the source's rows that match one of its rows.
        changed: number of updated rows.
        deleted: number of deleted rows.
        new_files: files that replace it, at most one.
        dead: positions of all rows that are deleted now, if the file stays; empty if it does not.
        moved: new versions of updated rows that go to other files; None for none.
    """

    location: str
    matched: pa.Int64Array = field(default_factory=lambda: NO_ROWS)
    changed: int = 0
    deleted: int = 0
    new_files: tuple[WrittenFile, ...] = ()
    dead: pa.Int64Array = field(default_factory=lambda: NO_ROWS)
    moved: pa.Table | None = None

    @property
    def changes_rows(self) -> bool:
        """Return whether some of the file's rows changed."""
        return bool(self.changed or self.deleted)


@dataclass(frozen=True)
class _Group:
    """A row group: its number, position of its first row, count, matches, and rows that go."""

    number: int
    begin: int
    count: int
    matches: Matches
    gone: pa.Int64Array


@dataclass(frozen=True)
class _Found:
    """The matched rows of a row group that change, and the columns that were read to know it."""

    changes: Matches
    rows: pa.Table


@dataclass(frozen=True)
class FileRewrite:
    """The part of a write that each file needs.

    Attributes:
        filesystem: of the files.
        schema: current Arrow schema of the table's files, with field ids; in format version 3 with
            the columns of row lineage.
        options: how new files are written.
        prefix: of the names of new files.
        source: the source's rows, with unique keys; None to rewrite files without deleted rows.
        updates: columns of a matched row that get the source's values, if one differs.
        deletes: which rows are deleted.
        moved_by: columns whose change moves a row to another file, because they partition rows.
        in_place: whether files are rewritten; if not, changed rows are deleted by position, and
            their new versions go to other files.
        condition: on the file's rows, without which they have no match; None for none.
        updates_if: on the file's rows, without which they are not updated; None for none.
    """

    filesystem: fs.FileSystem
    schema: pa.Schema
    options: ParquetOptions
    prefix: str
    source: Source | None = None
    updates: Sequence[str] = ()
    deletes: Deletes = Deletes.NONE
    moved_by: Sequence[str] = ()
    in_place: bool = True
    condition: Condition | None = None
    updates_if: Condition | None = None

    def run(self, file: OldFile) -> FileChange:
        """Match a file's rows with the source, and rewrite the file if one of them changes.

        Args:
            file: the file.

        Raises:
            NotByRewriting: the file cannot be rewritten.
            ColumnError: the file has a value that the table's type does not include.
            OSError: the file is damaged, or the storage refuses it; the message names the file.
        """
        try:
            opened = self.filesystem.open_input_file(file.path)
            with opened, pq.ParquetFile(opened) as parquet:
                require_ids(parquet)
                of_file = replace(self, schema=with_constants(self.schema, file.constants))
                if self.source is None:
                    return of_file._apply(parquet, file, NO_MATCHES, file.dead)
                return of_file._merge(parquet, file, self.source)
        except (OSError, pa.ArrowException) as error:
            if OVERFLOW in str(error):
                raise NotByRewriting(
                    f"{file.location} has over 2 GiB of text in one column"
                ) from error
            raise OSError(f"{file.location}: {error}") from error

    def _merge(self, parquet: pq.ParquetFile, file: OldFile, source: Source) -> FileChange:
        count = parquet.metadata.num_rows
        if file.is_located:
            matches, gone = Matches(file.in_file, file.in_source), file.gone
            updates = matches
        elif self.deletes is Deletes.SATISFYING:
            updates = matches = NO_MATCHES
            gone = self._satisfying(parquet, file)
        else:
            matches, updates = (without(each, file.dead) for each in self._matches(parquet, source))
            gone = self._deleted(count, file, matches)
        gone_and_dead = pa.concat_arrays([file.dead, gone])
        found: dict[int, _Found] = {}
        nothing_left = len(gone_and_dead) == count
        if nothing_left or not (len(gone) or self._changes_any(parquet, updates, found)):
            return FileChange(file.location, matches.in_source, deleted=len(gone))
        change = self._apply(parquet, file, updates, gone_and_dead, len(gone), found)
        return replace(change, matched=matches.in_source)

    def _matches(self, parquet: pq.ParquetFile, source: Source) -> tuple[Matches, Matches]:
        """Match a file's rows with the source; return also which matches may be updated."""
        conditions = [each for each in (self.condition, self.updates_if) if each is not None]
        others = [name for condition in conditions for name in condition.columns]
        rows = read_rows(parquet, self._only([*dict.fromkeys([*source.keys, *others])]))
        matches = source.match(rows.select(source.keys))
        if self.condition is not None:
            matches = _satisfying(matches, rows, self.condition)
        updates = source.that_may_update(matches)
        if self.updates_if is not None:
            updates = _satisfying(updates, rows, self.updates_if)
        return matches, updates

    def _satisfying(self, parquet: pq.ParquetFile, file: OldFile) -> pa.Int64Array:
        """Return the positions of the rows for which the condition holds."""
        assert self.condition is not None
        holds = self.condition.holds(read_rows(parquet, self._only(self.condition.columns)))
        positions = pc.indices_nonzero(holds.fill_null(False)).cast(pa.int64())
        return positions.filter(pc.invert(pc.is_in(positions, value_set=file.dead)))

    def _deleted(self, count: int, file: OldFile, matches: Matches) -> pa.Int64Array:
        """Return the positions of the rows that the write deletes."""
        if self.deletes is Deletes.MATCHED:
            return matches.in_file
        if self.deletes is Deletes.UNMATCHED:
            stays = pa.concat_arrays([matches.in_file, file.dead])
            positions = row_numbers(count)
            return positions.filter(pc.invert(pc.is_in(positions, value_set=stays)))
        return NO_ROWS

    def remove(self, file: OldFile, change: FileChange) -> None:
        """Remove the files that replace a file.

        Args:
            file: the file.
            change: its change.
        """
        for new in change.new_files:
            folder, name = file.path.rsplit("/", 1)[0], new.location.rsplit("/", 1)[1]
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(f"{folder}/{name}")

    def sweep(self, files: Sequence[OldFile], keep: Collection[FileChange] = ()) -> None:
        """Remove the write's files in the folders of other files.

        Args:
            files: the other files.
            keep: changes whose files stay.
        """
        names = {new.location.rsplit("/", 1)[1] for change in keep for new in change.new_files}
        for folder in {file.path.rsplit("/", 1)[0] for file in files}:
            with contextlib.suppress(OSError):
                for info in self.filesystem.get_file_info(fs.FileSelector(folder)):
                    if info.base_name.startswith(self.prefix) and info.base_name not in names:
                        self.filesystem.delete_file(info.path)

    def _only(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in names])

    def _changes_any(
        self, parquet: pq.ParquetFile, matches: Matches, found: dict[int, _Found]
    ) -> bool:
        """Return whether a matched row changes.

        Reads row groups until one does, and leaves what that one has in `found`.
        """
        if not self.updates or self.source is None:
            return False
        for group in _groups(parquet, matches, NO_ROWS):
            if len(group.matches):
                in_group = self._changes(parquet, group, self.source)
                if len(in_group.changes):
                    found[group.number] = in_group
                    return True
        return False

    def _changes(self, parquet: pq.ParquetFile, group: _Group, source: Source) -> _Found:
        """Return which matched rows of a row group change.

        Strings and nested values, which take most of the time, are only read if some rows do not
        differ in other columns.
        """
        narrow = [name for name in self.updates if _is_narrow(self.schema.field(name).type)]
        rows = read_rows(parquet, self._only(narrow), group.number)
        changes = changed(rows, source.rows, group.matches, narrow)
        if len(changes) < len(group.matches):
            rows = read_rows(parquet, self._only(self.updates), group.number, rows)
            changes = changed(rows, source.rows, group.matches, self.updates)
        return _Found(changes, rows)

    def _apply(
        self,
        parquet: pq.ParquetFile,
        file: OldFile,
        matches: Matches,
        gone: pa.Int64Array,
        deleted: int = 0,
        found: dict[int, _Found] | None = None,
    ) -> FileChange:
        """Apply the changes of a file's rows, row group by row group.

        Rows with a match are not updated if they are gone. What was `found` of row groups is not
        read again.
        """
        writer = writer_beside(
            self.filesystem, self.schema, self.options, file.location, file.path, self.prefix
        )
        count, dead, moved = 0, [NO_ROWS], []
        with writer:
            for group in _groups(parquet, matches, gone):
                known = (found or {}).pop(group.number, None)
                if self.in_place:
                    updates, left, rows = self._rewrite_group(parquet, file, group, writer, known)
                else:
                    updates, left, rows = self._delete_in_group(parquet, file, group, known)
                count += updates
                dead.append(pc.add(left, group.begin))
                moved += [rows] if rows is not None and rows.num_rows else []
            new_files = tuple(writer.close())
        return FileChange(
            file.location,
            matches.in_source,
            count,
            deleted,
            new_files,
            NO_ROWS if self.in_place else pa.concat_arrays(dead),
            pa.concat_tables(moved) if moved else None,
        )

    def _rewrite_group(
        self,
        parquet: pq.ParquetFile,
        file: OldFile,
        group: _Group,
        writer: RollingWriter,
        found: _Found | None,
    ) -> tuple[int, pa.Int64Array, pa.Table | None]:
        """Write the rows that stay; return the number of updates, which rows leave, and these."""
        known = None if found is None else found.rows
        rows = read_with_lineage(parquet, self.schema, file, group.number, group.begin, known)
        gone, changes, moved = group.gone, NO_MATCHES, None
        if self.source is not None and self.updates and len(group.matches):
            new = self.source.rows
            changes = changed(rows, new, group.matches, self.updates)
            leaving = changed(rows, new, changes, self.moved_by, exact=True)
            moved = new_versions(rows, new, leaving, self.updates, self.schema)
            gone = pa.concat_arrays([gone, leaving.in_file])
            rows = updated(rows, new, changes, self.updates)
        if len(gone):
            is_gone = pc.is_in(row_numbers(group.count), value_set=gone)
            rows = rows.filter(pc.invert(is_gone))
        # It stays one file, even if that becomes somewhat larger than the target size.
        writer.write(rows, may_roll=False)
        return len(changes), gone, moved

    def _delete_in_group(
        self,
        parquet: pq.ParquetFile,
        file: OldFile,
        group: _Group,
        found: _Found | None,
    ) -> tuple[int, pa.Int64Array, pa.Table | None]:
        """Return the number of updates, which rows are deleted, and their new versions."""
        if self.source is None or not self.updates or not len(group.matches):
            return 0, group.gone, None
        changes = (found or self._changes(parquet, group, self.source)).changes
        kept = self._only([name for name in self.schema.names if name not in self.updates])
        rows = read_with_lineage(parquet, kept, file, group.number, group.begin)
        moved = new_versions(rows, self.source.rows, changes, self.updates, self.schema)
        return len(changes), pa.concat_arrays([group.gone, changes.in_file]), moved


def _is_narrow(kind: pa.DataType) -> bool:
    """Return whether all values of a type have the same few bytes."""
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _satisfying(matches: Matches, rows: pa.Table, condition: Condition) -> Matches:
    return matches.only(condition.holds(rows.take(matches.in_file)).fill_null(False))


NO_MATCHES = Matches(NO_ROWS, NO_ROWS)
# In PyArrow's error for a column whose strings or bytes do not fit in one array.
OVERFLOW = "offset overflow"


def _groups(parquet: pq.ParquetFile, matches: Matches, gone: pa.Int64Array) -> Iterator[_Group]:
    """Iterate over row groups, with positions in the row group."""
    begin = 0
    for number in range(parquet.metadata.num_row_groups):
        count = parquet.metadata.row_group(number).num_rows
        local = matches.only(_between(matches.in_file, begin, begin + count))
        leaving = gone.filter(_between(gone, begin, begin + count))
        yield _Group(
            number,
            begin,
            count,
            Matches(pc.subtract(local.in_file, begin), local.in_source),
            pc.subtract(leaving, begin),
        )
        begin += count


def _between(positions: pa.Int64Array, begin: int, end: int) -> pa.BooleanArray:
    return pc.and_(pc.greater_equal(positions, begin), pc.less(positions, end))
