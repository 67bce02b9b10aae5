"""Models that are streams, run by dbt."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.functional.lake import rows, run, snapshot_ids, summary
from tests.functional.orders_stream import ALL, ORDERS, SOURCES, land


class TestSchemas:
    """The source gets another column, a wider one, one less, and one that does not fit."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        narrow = SOURCES.replace("amount double, op string, at bigint", "amount float, op string")
        return {"orders.sql": ORDERS, "sources.yml": narrow}

    def columns(self, project: Any, columns: str) -> None:
        text = SOURCES.replace("id bigint, status string, amount double, op string", columns)
        (Path(project.project_root) / "models" / "sources.yml").write_text(text)

    def test_they_change(self, project: Any) -> None:
        land(project, "1", (1, "new", 1.5, "c"))
        run_dbt(["run"])
        self.columns(project, "id bigint, status string, amount double, op string, note string")
        land(project, "2", (2, "new", 2.5, "c", 7))
        run_dbt(["run"])
        actual = rows(
            project, "select id, status, amount, note, at from {schema}.orders order by id"
        )
        assert actual == [(1, "new", 1.5, None, None), (2, "new", 2.5, None, 7)]
        self.columns(project, "id bigint, amount double, op string")
        land(project, "3", (3, "new", 3.5, "c", 8))
        run_dbt(["run"])
        assert rows(project, ALL)[2] == (3, None, 3.5)

    def test_one_that_does_not_fit(self, project: Any) -> None:
        self.columns(project, "id bigint, status bigint, amount double, op string")
        _, said = run_dbt_and_capture(["run"], expect_pass=False)
        assert "`status` is string in" in said and "but long in the new rows" in said
        assert len(rows(project, ALL)) == 3
        land(project, "4", (4, 4, 4.5, "c"))
        self.columns(project, "id bigint, amount double, op string")
        run_dbt(["run", "--full-refresh"])
        actual = rows(project, "select * from {schema}.orders order by id")
        assert actual[0] == (1, 1.5, None)
        assert len(actual) == 4


class TestNoDeleteFiles:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        config = "delete_encoding='copy_on_write', partition_by='status', table_properties={'format-version': '3'}, **{"
        return {"orders.sql": ORDERS.replace("**{", config), "sources.yml": SOURCES}

    def test_changes_flow(self, project: Any) -> None:
        land(project, "1", (1, "new", 1.0, "c"), (2, "new", 2.0, "c"), (3, "new", 3.0, "c"))
        run_dbt(["run"])
        land(project, "2", (1, "paid", 1.0, "u"), (2, None, None, "d"))
        run_dbt(["run"])
        assert rows(project, ALL) == [(1, "paid", 1.0), (3, "new", 3.0)]
        said = summary(project, "orders")
        assert said["operation"] == "overwrite" and said["total-delete-files"] == "0"
        run_dbt(["run", "--full-refresh"])
        assert rows(project, ALL) == [(1, "paid", 1.0), (3, "new", 3.0)]


KEY, EQUALITY = "unique_key='id'", "unique_key='id', delete_encoding='equality'"


class TestPartitionsThatCome:
    """A table with rows gets partitions: by its key, by days of a time, and by its key again."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        timed = ORDERS.replace("select *", "select *, timestamp_millis(at) as day")
        return {"orders.sql": timed, "sources.yml": SOURCES}

    def test_each_key_has_one_row(self, project: Any) -> None:
        model = Path(project.project_root) / "models" / "orders.sql"
        text, whole = model.read_text(), 86_400_000
        for number, by in enumerate([None, "bucket(4, id)", "day(day)", "bucket(4, id)"]):
            partition = f"unique_key='id', partition_by='{by}'" if by else "unique_key='id'"
            model.write_text(text.replace("unique_key='id'", partition))
            changes = [(key, str(number), 1.0, "c", (key - 2) * whole) for key in range(4 + number)]
            land(project, str(number), *changes)
            run_dbt(["run"])
            actual = rows(project, "select id, status from {schema}.orders order by id")
            assert actual == [(key, str(number)) for key in range(4 + number)]
        days = rows(
            project, "select count(*) from {schema}.orders.all_data_files where spec_id = 2"
        )
        assert days[0][0] > 1


class TestPartitionsThatComeBesideEqualityDeletes(TestPartitionsThatCome):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        timed = ORDERS.replace("select *", "select *, timestamp_millis(at) as day")
        return {"orders.sql": timed.replace(KEY, EQUALITY), "sources.yml": SOURCES}

    def test_each_key_has_one_row(self, project: Any) -> None:
        super().test_each_key_has_one_row(project)
        deletes = "select distinct content from {schema}.orders.all_delete_files"
        assert rows(project, deletes) == [(2,)]


class TestKeysThatAreAppended:
    """A table to which all states of a row are appended, and a stream that keeps the last one."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        events = "sources: [{name: raw, schema: '{{ target.schema }}', tables: [{name: events}]}]"
        config = "{{ config(materialized='stream', unique_key='id') }}"
        return {
            "states.sql": config + " select * from {{ stream(source('raw', 'events')) }}",
            "events.yml": events,
        }

    def append(self, project: Any, *states: str) -> None:
        for state in states:
            run(project, f"insert into {{schema}}.events values (1, '{state}'), (2, '{state}')")

    def test_the_last_state_wins(self, project: Any) -> None:
        run(project, "create table {schema}.events (id bigint, state string)")
        self.append(project, "v1", "v2", "v3")
        query = "select id, state from {schema}.states order by id"
        run_dbt(["run"])
        assert rows(project, query) == [(1, "v3"), (2, "v3")]
        self.append(project, "v4", "v5")
        run_dbt(["run"])
        assert rows(project, query) == [(1, "v5"), (2, "v5")]
        run_dbt(["run", "--full-refresh"])
        assert rows(project, query) == [(1, "v5"), (2, "v5")]

    def test_compaction_mixes_them(self, project: Any) -> None:
        call = (
            "rewrite_data_files(table => '{schema}.events', options => map('rewrite-all', 'true'))"
        )
        run(project, f"call lake.system.{call}")
        _, said = run_dbt_and_capture(["run", "--full-refresh"], expect_pass=False)
        assert "Set `sequence_by`" in said
        # What was appended since is later than all that was rewritten.
        self.append(project, "v6")
        run_dbt(["run", "--full-refresh"])
        actual = rows(project, "select id, state from {schema}.states order by id")
        assert actual == [(1, "v6"), (2, "v6")]

    def test_a_copy_on_write_that_has_expired(self, project: Any) -> None:
        """Its files look as if they had been appended."""
        run(project, "delete from {schema}.events where state = 'v5'")
        expire = "older_than => current_timestamp(), retain_last => 1"
        self.append(project, "v7")
        run(project, f"call lake.system.expire_snapshots(table => '{{schema}}.events', {expire})")
        run_dbt(["run", "--full-refresh"])
        assert rows(project, "select state from {schema}.states") == [("v7",)] * 2
        run(project, "update {schema}.events set state = 'x' where state = 'v7' and id = 2")
        self.append(project, "v8")
        run(project, "delete from {schema}.events where id = 1 and state = 'v8'")
        run(project, f"call lake.system.expire_snapshots(table => '{{schema}}.events', {expire})")
        _, said = run_dbt_and_capture(["run", "--full-refresh"], expect_pass=False)
        assert "Set `sequence_by`" in said


class TestFormatVersion1:
    """A source of format version 1, whose snapshots have no sequence numbers."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        events = "sources: [{name: raw, schema: '{{ target.schema }}', tables: [{name: v1}]}]"
        query = " select * from {{ stream(source('raw', 'v1')) }}"
        return {
            "keyed.sql": "{{ config(materialized='stream', unique_key='id') }}" + query,
            "ordered.sql": (
                "{{ config(materialized='stream', unique_key='id', sequence_by='at') }}" + query
            ),
            "all_rows.sql": "{{ config(materialized='stream') }}" + query,
            "v1.yml": events,
        }

    def test_the_last_row_wins(self, project: Any) -> None:
        create = "create table {schema}.v1 (id bigint, at binary, n bigint) tblproperties"
        run(project, create + " ('format-version' = '1')")
        row = "insert into {{schema}}.v1 values (1, X'{0:02x}ff', {0})"
        run(project, row.format(1))
        run_dbt(["run"])
        for number in (5, 3, 4):
            run(project, row.format(number))
        run_dbt(["run"])
        assert rows(project, "select n from {schema}.keyed") == [(4,)]
        # By a binary column, in the next run, too.
        assert rows(project, "select n from {schema}.ordered") == [(5,)]
        run(project, row.format(2))
        run_dbt(["run"])
        assert rows(project, "select n from {schema}.ordered") == [(5,)]
        actual = rows(project, "select n from {schema}.all_rows order by n")
        assert actual == [(n,) for n in range(1, 6)]


class TestFiles:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"orders.sql": ORDERS, "sources.yml": SOURCES}

    def test_changes_flow(self, project: Any) -> None:
        land(project, "1", (1, "new", 1.0, "c"), (2, "new", 2.0, "c"), (1, "paid", 1.0, "u"))
        (result,) = run_dbt(["run"]).results
        assert result.adapter_response["rows_affected"] == 3
        assert rows(project, ALL) == [(1, "paid", 1.0), (2, "new", 2.0)]

        land(project, "2", (2, None, None, "d"), (3, "new", 3.0, "c"))
        (result,) = run_dbt(["run"]).results
        assert result.adapter_response["total_delete_files"] == 1
        assert rows(project, ALL) == [(1, "paid", 1.0), (3, "new", 3.0)]

        before = snapshot_ids(project, "orders")
        run_dbt(["run"])
        assert snapshot_ids(project, "orders") == before
        assert summary(project, "orders")["iceberg-stream.sink-id"] == "model.test.orders"

    def test_full_refresh_is_one_commit(self, project: Any) -> None:
        before = snapshot_ids(project, "orders")
        run_dbt(["run", "--full-refresh"])
        assert len(snapshot_ids(project, "orders")) == len(before) + 1
        assert rows(project, ALL) == [(1, "paid", 1.0), (3, "new", 3.0)]
        land(project, "3", (3, "paid", 3.0, "u"))
        run_dbt(["run"])
        assert rows(project, ALL) == [(1, "paid", 1.0), (3, "paid", 3.0)]


APPENDED = """
{{ config(materialized='stream', alias='events', %s) }}
select id, status from {{ stream(source('landing', 'orders')) }}
"""


class TestRenamed:
    """A model that appends gets another name, and its table keeps its own."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"events.sql": APPENDED % "tags='x'", "sources.yml": SOURCES}

    def test_it_does_not_read_again(self, project: Any) -> None:
        land(project, "1", (1, "new", 1.0, "c"))
        run_dbt(["run"])
        models = Path(project.project_root) / "models"
        (models / "events.sql").rename(models / "all_events.sql")
        land(project, "2", (2, "new", 2.0, "c"))
        _, said = run_dbt_and_capture(["run"], expect_pass=False)
        assert "has the rows of the stream model.test.events" in said
        ids = "select id from {schema}.events order by id"
        assert rows(project, ids) == [(1,)]
        (models / "all_events.sql").write_text(APPENDED % "sink_id='model.test.events'")
        run_dbt(["run"])
        assert rows(project, ids) == [(1,), (2,)]


class TestBadRecords:
    """Lines that are no JSON, and a value that its column cannot take."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        letters = ORDERS.replace("unique_key='id'", "unique_key='id', on_bad_record='dead_letters'")
        history = ORDERS.replace(
            "unique_key='id'", "unique_key='id', stored_as_scd_type=2, sequence_by='at'"
        )
        late = letters.replace("on_bad", "sequence_by='at', delete_encoding='equality', on_bad")
        models = {"orders.sql": ORDERS, "letters.sql": letters, "sources.yml": SOURCES}
        return {**models, "history.sql": history, "plain.sql": ORDERS, "late.sql": late}

    def test_they_stop_the_stream_or_are_kept(self, project: Any) -> None:
        land(project, "1", (1, "new", 1.0, "c"), (2, "new", "much", "c"))
        _, said = run_dbt_and_capture(["run", "-s", "orders"], expect_pass=False)
        assert "1 record cannot be read" in said and "orders/1.json" in said
        # As older versions have made it.
        columns = "place string, record string, seen_at timestamp"
        run(project, f"create table {{schema}}.letters__dead_letters ({columns})")
        run_dbt(["run", "-s", "letters"])
        assert rows(project, "select id, amount from {schema}.letters") == [(1, 1.0)]
        ((place, record, reason),) = rows(
            project, "select place, record, reason from {schema}.letters__dead_letters"
        )
        assert place.endswith("orders/1.json, line 2") and "much" in record
        assert reason == "has a value in `amount` that does not fit the source's `columns`"

    def test_there_is_nothing_else(self, project: Any) -> None:
        (Path(project.project_root) / "landing/orders/1.json").unlink()
        land(project, "2", (3, "new", 1.0, "c", 1))
        run_dbt(["run", "-s", "history", "plain"])
        (Path(project.project_root) / "landing/orders/3.json").write_text("{spoiled\n")
        for model in ("plain", "history"):
            _, said = run_dbt_and_capture(["run", "-s", model], expect_pass=False)
            assert "1 record cannot be read" in said, model

    def test_a_batch_that_is_written_again(self, project: Any) -> None:
        """Its changes turn out to be late; its bad records are dead letters once all the same."""
        run_dbt(["run", "-s", "late"])
        land(project, "4", (3, "late", 2.0, "c", 0), (4, "new", "much", "c", 2))
        run_dbt(["run", "-s", "late"])
        assert rows(project, "select id, amount from {schema}.late") == [(3, 1.0)]
        places = (
            "select substring_index(place, '/', -1) from {schema}.late__dead_letters order by 1"
        )
        assert rows(project, places) == [("3.json, line 1",), ("4.json, line 2",)]


class TestIncompleteFiles:
    """A Parquet file whose writer has died is as a line that is no JSON; the others are read."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        source = SOURCES.replace("format: json", "format: parquet")
        columns = (
            "              columns: id bigint, status string, amount double, op string, at bigint\n"
        )
        assert columns in source
        letters = ORDERS.replace("unique_key='id'", "unique_key='id', on_bad_record='dead_letters'")
        models = {"orders.sql": ORDERS, "sources.yml": source.replace(columns, "")}
        # PyArrow does not compute this.
        expression = "reverse(reverse(upper(status)))"
        by_spark = letters.replace("select *", f"select * except (status), {expression} as status")
        return {**models, "letters.sql": letters, "by_spark.sql": by_spark}

    def put(self, project: Any, name: str, number: int, length: int | None = None) -> None:
        file = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": [number], "status": ["new"], "op": ["c"]}), file)
        folder = Path(project.project_root) / "landing/orders"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f".{name}").write_bytes(file.getvalue().to_pybytes()[:length])
        (folder / f".{name}").rename(folder / f"{name}.parquet")

    def test_they_stop_the_stream_or_are_listed(self, project: Any) -> None:
        for number, length in enumerate((100, None, 0, 300, None)):
            self.put(project, str(number), number, length)
        _, said = run_dbt_and_capture(["run", "-s", "orders"], expect_pass=False)
        assert "orders/0.parquet is not a complete Parquet file" in said
        assert "on_bad_record: dead_letters" in said
        for model, status in (("letters", "new"), ("by_spark", "NEW")):
            run_dbt(["run", "-s", model])
            actual = rows(project, f"select id, status from {{schema}}.{model} order by id")
            assert actual == [(1, status), (4, status)]
            letters = rows(
                project,
                f"select place, record, reason from {{schema}}.{model}__dead_letters order by place",
            )
            assert [place[-16:] for place, _, _ in letters] == [
                "orders/0.parquet",
                "orders/3.parquet",
            ]
            assert all(
                record is None and "not a complete" in reason for _, record, reason in letters
            )

    def test_nothing_but_such(self, project: Any) -> None:
        self.put(project, "9", 9, 200)
        run_dbt(["run", "-s", "letters", "by_spark"])
        for model in ("letters", "by_spark"):
            actual = rows(project, f"select count(*) from {{schema}}.{model}__dead_letters")
            assert actual == [(3,)]


HOOK = """
{% macro iceberg_stream__on_write(relation, snapshot_id) %}
  {% do run_query("insert into " ~ target.schema ~ ".written values ('" ~ relation.identifier ~ "', " ~ snapshot_id ~ ")") %}
{% endmacro %}
"""


PRICED = """
{{ config(materialized='stream'%s) }}
select id, date_trunc('day', ordered_at) as day, cast(amount * 1.2 as decimal(10, 2)) as gross
from {{ stream(source('landing', 'orders')) }} where ordered_at >= '2026-06-30T22:30:00Z'
"""


class TestTimesAndDecimals:
    """Spark computes them, in the time zone of the session."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        columns = "columns: id bigint, status string, amount double, op string, at bigint"
        source = SOURCES.replace("format: json", "format: parquet").replace(columns, "")
        zone = ", pre_hook='set spark.sql.session.timeZone = Europe/Berlin'"
        return {"utc.sql": PRICED % "", "berlin.sql": PRICED % zone, "sources.yml": source}

    def test_the_session_decides(self, project: Any) -> None:
        times = [datetime(2026, 6, day, hour, 30) for day, hour in ((30, 22), (30, 21), (30, 23))]
        orders = pa.table(
            {
                "id": [1, 2, 3],
                "ordered_at": pa.array(times).cast(pa.timestamp("us", "UTC")),
                "amount": pa.array([10, 20, 30]).cast(pa.decimal128(19, 0)),
            }
        )
        folder = Path(project.project_root) / "landing/orders"
        folder.mkdir(parents=True)
        pq.write_table(orders, folder / "1.parquet")
        results = {}
        for name in ("utc", "berlin"):
            _, output = run_dbt_and_capture(["--debug", "run", "-s", name])
            assert "Spark reads all columns" not in output
            sql = f"select id, cast(day as string), cast(gross as string) from {{schema}}.{name}"
            results[name] = sorted(rows(project, sql))
        assert results["utc"] == [
            (1, "2026-06-30 00:00:00", "12.00"),
            (3, "2026-06-30 00:00:00", "36.00"),
        ]
        assert results["berlin"] == [
            (1, "2026-06-30 22:00:00", "12.00"),
            (3, "2026-06-30 22:00:00", "36.00"),
        ]


class TestHookOfTheProject:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        often = ORDERS.replace(
            "unique_key='id'", "unique_key='id', batch_rows=1, commit_interval=0"
        )
        return {"orders.sql": often, "sources.yml": SOURCES}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"on_write.sql": HOOK}

    def test_it_is_called_for_each_commit(self, project: Any) -> None:
        run(project, "create table {schema}.written (name string, snapshot bigint) using iceberg")
        for number in range(3):
            land(project, str(number), (number, "new", 1.0, "c"))
        run_dbt(["run"])
        ids = snapshot_ids(project, "orders")
        assert len(ids) == 3
        written = rows(project, "select name, snapshot from {schema}.written")
        assert sorted(written) == sorted(("orders", number) for number in ids)


class TestWiderKey:
    """The table's equality deletes have the key in the narrow type, and Spark has read them."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        narrow = SOURCES.replace("id bigint", "id int")
        return {"orders.sql": ORDERS.replace(KEY, EQUALITY), "sources.yml": narrow}

    def test_deleted_rows_stay_deleted(self, project: Any) -> None:
        land(project, "1", (1, "new", 1.0, "c"), (2, "new", 1.0, "c"))
        run_dbt(["run"])
        land(project, "2", (1, "paid", 2.0, "u"), (2, None, None, "d"))
        run_dbt(["run"])
        # The engine has read the deletes now.
        assert rows(project, ALL) == [(1, "paid", 2.0)]
        (Path(project.project_root) / "models" / "sources.yml").write_text(SOURCES)
        land(project, "3", (2**40, "new", 3.0, "c"))
        run_dbt(["run"])
        assert rows(project, ALL) == [(1, "paid", 2.0), (2**40, "new", 3.0)]
        land(project, "4", (1, None, None, "d"))
        run_dbt(["run"])
        assert rows(project, ALL) == [(2**40, "new", 3.0)]


CONTRACT = """
models:
  - name: orders
    config: {contract: {enforced: true}}
    columns:
      - {name: id, data_type: bigint, constraints: [{type: not_null}]}
      - {name: status, data_type: string}
      - {name: amount, data_type: double}
      - {name: at, data_type: bigint}
"""


class TestContract:
    """A key that must not be null stops the stream where it is."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"orders.sql": ORDERS, "sources.yml": SOURCES, "contract.yml": CONTRACT}

    def test_a_key_that_is_null(self, project: Any) -> None:
        land(project, "1", (1, "new", 1.0, "c"))
        run_dbt(["run"])
        land(project, "2", (2, "new", 1.0, "c"), (None, "new", 2.0, "c"))
        _, said = run_dbt_and_capture(["run"], expect_pass=False)
        assert "`id` has nulls, but the table requires it" in said
        assert rows(project, ALL) == [(1, "new", 1.0)]


class TestVersions:
    """The column that orders changes is not one of the table's: its values are in `__START_AT`."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        history = ORDERS.replace("'except': ['op']", "'except': ['op', 'at']").replace(
            "unique_key='id'", "unique_key='id', stored_as_scd_type=2, sequence_by='at'"
        )
        return {"orders.sql": history, "sources.yml": SOURCES}

    def test_changes_flow(self, project: Any) -> None:
        land(project, "1", (1, "new", 1.0, "c", 10), (2, "new", 2.0, "c", 11))
        land(project, "2", (1, "paid", 1.0, "u", 20), (2, None, None, "d", 21))
        run_dbt(["run"])
        assert rows(project, "select * from {schema}.orders order by 1, __START_AT") == [
            (1, "new", 1.0, 10, 20),
            (1, "paid", 1.0, 20, None),
            (2, "new", 2.0, 11, 21),
        ]

    def test_deletes_that_come_first(self, project: Any) -> None:
        land(project, "3", (3, None, None, "d", 30), (None, None, None, "d", 30))
        run_dbt(["run"])
        land(project, "4", (3, "new", 3.0, "c", 25), (None, "new", 4.0, "c", 26))
        run_dbt(["run"])
        query = "select * from {schema}.orders where __START_AT > 20 order by __START_AT"
        expected = [(3, "new", 3.0, 25, 30), (None, "new", 4.0, 26, 30)]
        assert rows(project, query) == expected
        run_dbt(["run", "--full-refresh"])
        assert rows(project, query) == expected


class TestChangesOfATable:
    """A stream of a stream: rows that the first one updates and deletes."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        doubled = """
            {{ config(materialized='stream', unique_key='number') }}
            select id as number, amount * 2 as doubled
            from {{ stream(ref('live'), changes=true) }}
        """
        return {"live.sql": ORDERS, "doubled.sql": doubled, "sources.yml": SOURCES}

    def test_changes_flow(self, project: Any) -> None:
        query = "select number, doubled from {schema}.doubled order by number"
        land(project, "1", (1, "new", 1.0, "c"), (2, "new", 2.0, "c"), (3, "new", 3.0, "c"))
        run_dbt(["run"])
        assert rows(project, query) == [(1, 2.0), (2, 4.0), (3, 6.0)]
        land(project, "2", (2, None, None, "d"), (3, "paid", 4.0, "u"), (4, "new", 5.0, "c"))
        run_dbt(["run"])
        assert rows(project, query) == [(1, 2.0), (3, 8.0), (4, 10.0)]
        before = snapshot_ids(project, "doubled")
        run_dbt(["run"])
        assert snapshot_ids(project, "doubled") == before
        run(project, "delete from {schema}.live where id = 1")
        run_dbt(["run"])
        assert rows(project, query) == [(3, 8.0), (4, 10.0)]


class TestTimesWithoutZone:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        model = """
            {{{{ config(materialized='stream', unique_key='id', {}) }}}}
            select * from {{{{ stream(source('landing', 'times')) }}}}
        """
        source = "{type: files, path: times, columns: 'id bigint, at timestamp_ntz, gone boolean'}"
        return {
            "sources.yml": "sources: [{name: landing, tables: [{name: times, config: {meta: "
            f"{{stream: {source}}}}}}}]}}]",
            "soft.sql": model.format("soft_deletes='gone_at', apply_as_deletes='gone'"),
            "versions.sql": model.format("sequence_by='at', stored_as_scd_type=2"),
        }

    def test_full_refresh(self, project: Any) -> None:
        """Columns that it fills in from the table, which has no rows then, are as they were."""
        folder = Path(project.project_root) / "times"
        folder.mkdir()
        (folder / "1.json").write_text('{"id": 1, "at": "2026-01-01T10:00:00"}')
        for arguments in ([], ["--full-refresh"]):
            run_dbt(["run", *arguments])
            at = datetime(2026, 1, 1, 10)
            assert rows(project, "select at from {schema}.soft") == [(at,)]
            assert rows(project, "select at, __START_AT from {schema}.versions") == [(at, at)]
