"""Steps of random histories: Spark's writes and its maintenance."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from dbt.adapters.iceberg_stream.errors.spark import StatementError
from tests.integration.own_writes_machine import has_lost_source
from tests.integration.stream_rules import StreamRules
from tests.integration.table_model import KINDS, literal, plain


class SparkRules(StreamRules):
    """A table that Spark writes, maintains and rolls back; the stream resumes after it."""

    @rule(data=st.data())
    def spark_insert(self, data: st.DataObject) -> None:
        rows = self._rows(data)
        self._insert(rows)
        self.table.rows += rows

    @rule(data=st.data(), mode=st.sampled_from(["copy-on-write", "merge-on-read"]))
    def spark_delete(self, data: st.DataObject, mode: str) -> None:
        self._set_mode(mode)
        keys = self._keys(data)
        self.sql(f"delete from {self.relation} where {self._is_in(keys)}")
        self._delete_keys(keys)

    @rule(data=st.data(), mode=st.sampled_from(["copy-on-write", "merge-on-read"]))
    def spark_update(self, data: st.DataObject, mode: str) -> None:
        self._set_mode(mode)
        keys, column = self._keys(data), data.draw(st.sampled_from(self.table.columns), "column")
        value = self._value(data, column)
        new = literal(value, column.kind)
        self.sql(f"update {self.relation} set {column.name} = {new} where {self._is_in(keys)}")
        wanted = {plain(key) for key in keys}
        for row in self.table.rows:
            if plain(row[0]) in wanted:
                row[column.number] = value

    @rule(data=st.data(), mode=st.sampled_from(["copy-on-write", "merge-on-read"]))
    def spark_merge(self, data: st.DataObject, mode: str) -> None:
        self._set_mode(mode)
        rows, key = self._distinct(self._rows(data)), self.table.key.name
        self._view("new_rows", rows)
        self.sql(
            f"merge into {self.relation} t using new_rows n on t.{key} <=> n.{key} "
            "when matched then update set * when not matched then insert *"
        )
        self._apply_merge(rows, self.table.columns, True)

    @rule(data=st.data())
    def spark_overwrite(self, data: st.DataObject) -> None:
        rows = self._rows(data)
        self._view("new_rows", rows)
        self.sql(f"insert overwrite {self.relation} select * from new_rows")
        self.table.rows = rows

    @rule(data=st.data())
    def spark_replace(self, data: st.DataObject) -> None:
        rows = self._rows(data)
        self._view("new_rows", rows)
        columns = ", ".join(
            f"cast({c.name} as {KINDS[c.kind].sql}) as {c.name}" for c in self.table.columns
        )
        self.sql(
            f"create or replace table {self.relation} using iceberg as select {columns} from new_rows"
        )
        self.table.rows, self.partitioned, self.sorted_by = rows, {}, None
        # None of what the stream has written is in it.
        self._resume(-1 if self.streamed else 0)

    # Maintenance.

    @rule(everything=st.booleans())
    def rewrite_data_files(self, everything: bool) -> None:
        options = (
            "map('rewrite-all', 'true')" if everything else "map('delete-file-threshold', '1')"
        )
        self.call("rewrite_data_files", f"options => {options}")

    @rule()
    def rewrite_manifests(self) -> None:
        try:
            self.call("rewrite_manifests")
        except StatementError as error:
            # Nor can Iceberg 1.12 do that where the source of a partition field was dropped.
            assert has_lost_source(self._load().metadata), error

    @precondition(lambda self: self.version > 1)
    @rule()
    def rewrite_position_delete_files(self) -> None:
        try:
            self.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")
        except StatementError as error:
            # Iceberg 1.12 takes partitions of two specs for one, where a field was dropped.
            assert "expected to have same spec id" in str(error), error

    @rule(keep=st.integers(1, 3))
    def expire_snapshots(self, keep: int) -> None:
        self.call(
            "expire_snapshots",
            f"older_than => timestamp '2100-01-01 00:00:00', retain_last => {keep}",
        )
        self.history = {one: self.history[one] for one in self._snapshots() if one in self.history}

    @rule(back=st.integers(0, 4))
    def roll_back(self, back: int) -> None:
        ancestors = [one for one in self._ancestors() if one in self.history]
        if not ancestors:
            return
        snapshot = ancestors[back % len(ancestors)]
        self.call("rollback_to_snapshot", f"snapshot_id => {snapshot}")
        rows, streamed = self.history[snapshot]
        self.table.rows = [dict(row) for row in rows]
        self._resume(streamed)

    @rule(kind=st.sampled_from(["branch", "tag"]))
    def make_ref(self, kind: str) -> None:
        if self._snapshots():
            self.numbers += 1
            self.sql(f"alter table {self.relation} create {kind} r{self.numbers} retain 5 days")
