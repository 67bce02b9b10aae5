"""What Spark runs for callers of the Flight SQL server, and ways around it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.flight.statements import (
    NOT_A_QUERY,
    NOT_ALLOWED,
    ONLY_A_QUERY,
    guard_settings,
    require_guard,
)

FILE = "`/etc/passwd`"
# What else stops a way around: Spark finds no such table, or cannot read the statement.
NOT_FOUND = ("TABLE_OR_VIEW_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE")
UNREADABLE = ("PARSE_", "INVALID_", "UNCLOSED_BRACKETED_COMMENT", "UNBOUND_SQL_PARAMETER")
# Of a view whose text Spark cannot parse.
INVALID_VIEW = "_LEGACY_ERROR_TEMP_1321"
COLUMNS = "(id bigint, a string, b int, x int, y int, z int, es array<int>, ts timestamp)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def engine(engine_home: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(EngineSettings(engine_home, keep_alive=120))
    yield engine
    engine.release()


@pytest.fixture(scope="module")
def owner(engine: EmbeddedEngine, folder: Path) -> Iterator[Session]:
    """A session that may do everything, and has made the tables."""
    session = Session(engine.endpoint(), spark_settings("lake", folder))
    session.run("create namespace lake.s")
    for table in ("t", "u"):
        session.run(f"create table lake.s.{table} {COLUMNS} using iceberg")
        session.run(f"insert into lake.s.{table} (id, a) values (1, 'a')")
    session.run("create table lake.s.v (id bigint) using iceberg")
    session.run("create view lake.s.fine as select id, upper(a) as name from lake.s.t -- of s")
    yield session
    session.close()


@pytest.fixture(scope="module")
def caller(engine: EmbeddedEngine, owner: Session, folder: Path) -> Iterator[Session]:
    session = Session(engine.endpoint(), spark_settings("lake", folder) | guard_settings("lake"))
    require_guard(session)
    yield session
    session.close()


def run_query(session: Session, sql: str) -> int:
    """Run a query; the number of its rows."""
    return sum(batch.num_rows for batch in list(session.stream(sql + ONLY_A_QUERY))[1:])


@pytest.mark.parametrize(
    "sql",
    [
        "select 1",
        "select count(*) as n, max(x) from s.t where y in (1, 2) group by z;",
        "with recursive r (n) as (select 1 union all select n + 1 from r where n < 5) select * from r",
        "select * from s.t pivot (sum(b) for x in (1, 2))",
        "select * from s.t unpivot (v for k in (b, x))",
        "from s.t |> where id = 1 |> select a",
        "table s.t",
        "select * from s.t, lateral (select t.id + 1 as next)",
        "select collate('a', 'UTF8_LCASE'), extract(year from ts), a::string from s.t",
        "select from_json('{\"a\": 1}', 'a int'), from_json('{}', 'a int', map('mode', 'FAILFAST'))",
        "select from_json('{\"a\": 1}', schema_of_json('{\"a\": 1}')), from_csv('1', 'a int')",
        "select variant_get(parse_json('{\"a\": 1}'), '$.a', 'int'), system.bucket(4, id) from s.t",
        "select listagg(a, ',') within group (order by a) from s.t",
        "select * from s.t distribute by id sort by a",
        "show catalogs",
        "show views in s",
        "describe s.t id",
        "show tblproperties s.t",
        "with a as (select * from s.t), b (c, d) as (values (1, 2)) select * from a, b",
        "select * from lake.s.t timestamp as of current_timestamp()",
        "select * from lake.s.t.snapshots",
        "select * from lake.s.t.branch_main",
        "select * from s.t left join s.u using (id) where exists (select 1 from s.v)",
        "select /*+ broadcast(t) */ a /* of /* a */ text */ from s.t -- the end",
        "select 'a--b', '/* c */', 'it''s', 'it\\'s; drop table x', r'\\d', '${env:HOME}', 'ä{}'",
        "select lake.system.bucket(16, id), `id` from s.t",
        "select transform(es, x -> x + 1), cast(id as decimal(10, 2)) from s.t",
        "select id, e from s.t lateral view explode(es) x as e",
        "select row_number() over (partition by a order by b) from s.t tablesample (10 percent)",
        "select current_user(), current_user, session_user()",
        "select * from range(10)",
        "select * from s.fine",
        "values (1, 'a'), (2, 'b')",
        "select 1 union all (select 2)",
        "show tables in s",
        "show namespaces in lake",
        "show tables in lake.s like 'a*'",
        "show create table `s`.`t`",
        "describe table extended s.t",
        "desc s.t",
        "describe query select * from s.t",
        "explain extended select * from s.t",
    ],
)
def test_queries(caller: Session, sql: str) -> None:
    run_query(caller, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "insert into s.t values (1, 'a')",
        "insert into table lake.s.t (a, b) select a, b from s.u",
        "insert overwrite s.t select * from s.u",
        "with a as (select 1 as id) insert into s.t select * from a",
        "update s.t set a = upper(a) where b = 2",
        "delete from s.t where id in (select id from s.u)",
        "merge into s.t using s.u on t.id = u.id when matched then update set * "
        "when not matched then insert *",
        "truncate table s.t",
        "create table s.n (id bigint, name varchar(10)) using iceberg partitioned by (days(ts))",
        "create or replace table s.n as select * from s.t",
        "create table if not exists s.n (id int) comment 'x'",
        "create or replace view s.n as select * from s.t",
        "drop table if exists s.t purge",
        "drop view lake.s.fine",
        "create namespace if not exists n",
        "drop schema if exists lake.n cascade",
        "alter table s.t add column x int",
        "alter table s.t drop column x",
        "refresh table s.t",
    ],
)
def test_changes_are_no_queries_and_are_not_run_as_such(caller: Session, sql: str) -> None:
    with pytest.raises(StatementError) as error:
        run_query(caller, sql)
    assert error.value.condition == NOT_A_QUERY
    assert run_query(caller, "select * from s.t") == 1


def test_changes(caller: Session) -> None:
    for sql in (
        "create namespace if not exists n",
        "create table n.a (id int, name varchar(10)) using iceberg partitioned by (bucket(4, id))",
        "create or replace table n.a partitioned by (id) as select 1 as id, 'x' as name",
        "insert into n.a values (2, 'y')",
        "with c as (select 3 as id, 'z' as name) insert into n.a select * from c",
        "insert overwrite n.a select * from n.a",
        "update n.a set name = upper(name) where id = 2",
        "delete from n.a where id in (select id from s.t)",
        "merge into n.a using s.u on a.id = u.id when matched then update set name = u.a "
        "when not matched then insert (id, name) values (u.id, u.a)",
        "alter table n.a add column x int",
        "alter table n.a drop column x",
        "refresh table n.a",
        "create or replace view n.w comment 'x' as select /*+ broadcast(a) */ * from n.a",
    ):
        caller.run(sql)
    assert run_query(caller, "select * from n.w where name in ('Y', 'z', 'a')") == 3
    for sql in (
        "drop view n.w",
        "truncate table n.a",
        "drop table if exists n.a purge",
        "drop schema if exists lake.n",
    ):
        caller.run(sql)


WAYS_AROUND = {
    "a path as a table": f"select * from text.{FILE}",
    "another format": f"select * from parquet.{FILE}",
    "a class as a format": f"select * from `org.apache.spark.sql.execution.text`.{FILE}",
    "Iceberg's own paths": "select * from iceberg.`file:/tables/of/another`",
    "a path in a schema": f"select * from s.{FILE}",
    "a path in the catalog": f"select * from lake.s.{FILE}",
    "a path in a subquery": f"select (select max(value) from text.{FILE})",
    "a path in a common table": f"with a as (select * from json.{FILE}) select * from a",
    "a path behind a common table of its name": f"with text as (select 1) select * from text.{FILE}",
    "a path in a join": f"select * from s.t join csv.{FILE} on true",
    "a path in a condition": f"delete from s.t where a in (select value from text.{FILE})",
    "a path in a merge": f"merge into s.t using text.{FILE} u on true when matched then delete",
    "a path to insert from": f"insert into s.t select * from text.{FILE}",
    "a table to insert from": f"insert into s.t table text.{FILE}",
    "a path to insert into": "insert into text.`/srv/x` select * from s.t",
    "a path as a target with columns": "insert into text.`/srv/x` (a) select 1",
    "a path to describe": f"describe table extended text.{FILE}",
    "a query to describe": f"describe query select * from text.{FILE}",
    "the columns of a path": f"show columns in text.{FILE}",
    "a path in double quotes": 'select * from "text"."/etc/passwd"',
    "a table as a relation": f"select * from (table text.{FILE})",
    "a table as a stream": f"select * from stream text.{FILE}",
    "a table as a stream in parentheses": f"select * from stream(text.{FILE})",
    "another catalog": "select * from spark_catalog.default.t",
    "another catalog without a schema": "select * from spark_catalog.t",
    "another catalog of the profile": "select * from other.s.t",
    "the schemas of another catalog": "show schemas in spark_catalog",
    "a name that is computed": f"select * from identifier('text.{FILE}')",
    "a function that is computed": "select identifier('reflect')('java.lang.System', 'exit')",
    "Java": "select java_method('java.lang.Runtime', 'getRuntime')",
    "Java by another name": "select reflect('java.lang.System', 'getenv', 'HOME')",
    "Java that may fail": "select try_reflect('java.lang.System', 'getenv', 'HOME')",
    "Java in backticks": "select `reflect`('java.lang.System', 'getenv', 'HOME')",
    "Java in capitals and comments": "select REFLECT/**/ ('java.lang.System', 'getenv', 'HOME')",
    "Java behind a catalog": "select system.builtin.reflect('java.lang.System', 'getenv', 'HOME')",
    "Java behind our catalog": "select lake.system.reflect('java.lang.System', 'getenv', 'HOME')",
    "Java hidden by a common table": "with reflect (a) as (select 1) select reflect('a', 'b')",
    "Java in an order": "select 1 order by reflect('java.lang.System', 'getenv', 'HOME')",
    "Java in a default": "create table s.n (a string default reflect('java.lang.System', 'b'))",
    "Java in a window": "select sum(1) over (order by reflect('a', 'b')) from s.t",
    "a function of somebody": "select s.mine(1)",
    "a function that nobody knows": "select read_files('/etc/passwd')",
    "a function that reads a descriptor": f"select from_protobuf(a, 'M', '{FILE}') from s.t",
    "XML with a schema of the host": "select from_xml(a, 'b int', map('rowValidationXSDPath', 'x'))",
    "files of tables": "select input_file_name() from s.t",
    "what workers log": "select * from python_worker_logs()",
    "a script": "select transform(a) using 'cat /etc/passwd' from s.t",
    "a script by map": "map a using 'cat /etc/passwd' from s.t",
    "a script by reduce": "from (select * from s.t) reduce a using 'cat'",
    "a folder as a target": "insert overwrite directory '/srv/x' using parquet select 1",
    "a local folder as a target": "insert overwrite local directory '/srv/x' select 1",
    "data of a file": "load data inpath '/etc/passwd' into table s.t",
    "a table somewhere else": "create table s.n (a int) using iceberg location '/srv/x'",
    "files somewhere else": "create table s.n tblproperties ('write.data.path' = '/x') as select 1",
    "files somewhere else, later": "alter table s.t set tblproperties ('write.data.path' = '/x')",
    "a location, later": "alter table s.t set location '/x'",
    "a table of another format": f"create table s.n using csv options (path {FILE})",
    "a table outside of the warehouse": "create table s.`../../x` (a int)",
    "a table in the folder of another": "create table s.`t/metadata` as select 1 as a",
    "a schema outside of the warehouse": "create namespace `..`",
    "a view outside of the warehouse": "create view s.`../x` as select 1 as a",
    "a schema somewhere else": "create namespace n location '/srv/x'",
    "a temporary view": f"create temporary view n using text options (path {FILE})",
    "a temporary view of a query": "create temporary view n as select 1",
    "a view of a path": f"create view s.n as select * from text.{FILE}",
    "a jar": "add jar '/srv/x.jar'",
    "a file": "add file '/etc/passwd'",
    "a list of jars": "list jars",
    "a function": "create function f as 'com.x.F' using jar '/srv/x.jar'",
    "a function of SQL": "create temporary function f() returns int return 1",
    "a setting": "set spark.sql.runSQLOnFiles = true",
    "all settings": "set",
    "a setting that is reset": "reset spark.sql.runSQLOnFiles",
    "a procedure": "call lake.system.add_files('s.t', 'parquet.`/home`')",
    "another catalog, later": "use spark_catalog",
    "a text that is run": f"execute immediate 'select * from text.{FILE}'",
    "a script of SQL": f"begin select * from text.{FILE}; end",
    "a variable": "declare x = 1",
    "a cached table": f"cache table n as select * from text.{FILE}",
    "a cached path": f"cache table text.{FILE}",
    "two statements": "select 1; add jar '/srv/x.jar'",
    "two statements and a comment": "select 1 --\n; set a = 1",
    "a comment that goes on": f"select 1 --\\\n\n from text.{FILE}",
    "a comment of templates": f"select 1 {{# #}} from text.{FILE}",
    "an escape of JDBC": "select {fn reflect('a', 'b')}",
    "the environment": "select ${env:HOME}",
    "a comment in a comment": f"select * from /* /* */ s.t -- */ text.{FILE}",
    "a quote that is escaped": f"select '\\' from s.t -- ' from text.{FILE}",
    "a raw text": f"select r'\\', * from text.{FILE} --'",
    "signs that look like others": f"select * from tеxt.{FILE}",
    "a blank that is none": f"select\u00a0* from text.{FILE}",
    "a quote of another script": "select ＇a＇",
    "a pipe": f"from s.t |> union all select * from text.{FILE}",
    "options of a table": "select * from s.t with (`path` = '/etc/passwd')",
    "a session's variable": "select @x",
    "a parameter": "select * from identifier(:x)",
    "a copy": f"create table s.n like text.{FILE}",
    "a nothing": "",
    "a comment": "-- nothing",
    "a comment without an end": "select 1 /* ",
    "a text without an end": "select 'a",
    "a hint with a comment in a string": f"select /*+ H('*/') */ * from text.{FILE} -- */",
    "Java behind a hint": "select /*+ H('*/') */ reflect('java.lang.System', 'getenv', 'A') -- */",
    "Java in hints that seem to nest": "select /* /*+ */ reflect('a', 'b') /* */ -- */ 'y'",
    "Java in a hint": "select /*+ repartition(1, reflect('a', 'b')) */ 1",
    "Java in rows": "select * from values (reflect('java.lang.System', 'getenv', 'HOME'))",
    "Java as a limit": "select 1 limit length(reflect('java.lang.System', 'getenv', 'HOME'))",
    "Java as a version": "select * from s.t timestamp as of reflect('a', 'b')",
    "Java in a lambda": "select transform(array('a'), x -> reflect('a', x))",
    "Java as a generator": "select * from s.t lateral view reflect('a', 'b') x as y",
    "Java as a table": "select * from reflect('a', 'b')",
    "Java behind a pipe": "from s.t |> where reflect('a', 'b') = 'c'",
    "Java in a common table": "with a as (select reflect('a', 'b')) select 1",
    "Java in an update": "update s.t set a = reflect('a', 'b')",
    "Java in a merge": "merge into s.t using s.u on t.id = u.id when not matched then "
    "insert (id, a) values (1, reflect('a', 'b'))",
    "Java to explain": "explain select reflect('java.lang.System', 'getenv', 'HOME')",
    "Java in a session's namespace": "select session.reflect('a', 'b')",
    "a class as a type": 'select from_json(\'{}\', \'{"type":"struct","fields":[{"name":"a",'
    '"type":{"type":"udt","class":"java.util.Timer"},"nullable":true,"metadata":{}}]}\')',
    "a class as a type behind a blank": "select from_csv('1', '\n {\"type\":\"udt\"}')",
    "a class as a computed type": "select from_json('{}', concat('{', '\"type\":\"struct\"}'))",
    "a class as a named type": "select from_json(json => '{}', schema => '{\"type\":\"struct\"}')",
    "a class as a variant's type": "select variant_get(parse_json('1'), '$', '{\"type\":\"udt\"}')",
    "a default of a type": 'select from_json(\'{}\', \'{"type":"struct","fields":[{"name":"a",'
    '"type":"string","nullable":true,"metadata":{"EXISTS_DEFAULT":"reflect(1, 2)"}}]}\')',
    "a table of Spark's own catalog": "create table spark_catalog.default.t as select 1 as a",
    "the views of Spark's own catalog": "show views in spark_catalog.default",
    "a write to explain": "explain insert into s.t select * from s.u",
    "two targets": "from s.u insert into s.t select * insert into s.v select id",
    "options of a target": "insert into s.t with (`write-format` = 'orc') select * from s.u",
}


@pytest.mark.parametrize("sql", WAYS_AROUND.values(), ids=WAYS_AROUND.keys())
def test_ways_around(caller: Session, sql: str) -> None:
    with pytest.raises(StatementError) as error:
        caller.fetch(caller.run(sql))
    require_stopped(error.value)


def require_stopped(error: StatementError) -> None:
    condition = error.condition or ""
    assert (
        condition == NOT_ALLOWED
        or condition in (*NOT_FOUND, INVALID_VIEW)
        or condition.startswith(UNREADABLE)
    ), f"{condition}: {error}"


@pytest.mark.parametrize(
    "sql",
    [sql for sql in WAYS_AROUND.values() if sql],
    ids=[name for name, sql in WAYS_AROUND.items() if sql],
)
@pytest.mark.variants(40)
def test_ways_around_through_views(owner: Session, caller: Session, folder: Path, sql: str) -> None:
    """A catalog may have a view of any text, which nobody has checked."""
    owner.run("create or replace view lake.s.way as select 1 as a")
    rewrite(folder / "s" / "way", sql)
    for query in (
        "select * from s.way",
        "select (select max(a) from lake.s.way)",
        "with w as (select * from s.way) select 1 from w, w as v",
    ):
        with pytest.raises(StatementError) as error:
            run_query(caller, query)
        require_stopped(error.value)
    assert run_query(caller, "select * from s.t") == 1


def rewrite(view: Path, sql: str, **changes: object) -> None:
    """Change the text of a view in all of its metadata files."""
    for path in (view / "metadata").glob("*.metadata.json"):
        metadata = json.loads(gzip.decompress(path.read_bytes()))
        for version in metadata["versions"]:
            version["representations"][0]["sql"] = sql
            version |= changes
        path.write_bytes(gzip.compress(json.dumps(metadata).encode()))
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def test_a_view_of_another_namespace_or_catalog(
    owner: Session, caller: Session, folder: Path
) -> None:
    """The names in a view are those of its own namespace, of as many levels as it says."""
    owner.run("create or replace view lake.s.calls as select 1 as a")
    rewrite(folder / "s" / "calls", "select reflect('java.lang.System', 'getenv', 'HOME') as a")
    owner.run("create or replace view lake.s.moved as select 1 as a")
    for changes in (
        {"default-namespace": ["s"]},
        {"default-catalog": "spark_catalog", "default-namespace": ["default"]},
        {"default-namespace": ["s", "t"]},
        {"default-namespace": []},
    ):
        rewrite(folder / "s" / "moved", "select * from calls", **changes)
        with pytest.raises(StatementError) as error:
            run_query(caller, "select * from s.moved")
        require_stopped(error.value)


def test_a_view_behind_the_name_of_a_metadata_table(
    owner: Session, caller: Session, folder: Path
) -> None:
    owner.run("create namespace lake.s.w")
    owner.run("create view lake.s.w.files as select 1 as a")
    rewrite(folder / "s" / "w" / "files", "select reflect('java.lang.System', 'getenv', 'HOME')")
    with pytest.raises(StatementError) as error:
        run_query(caller, "select a from lake.s.w.files")
    assert error.value.condition == NOT_ALLOWED
    owner.run("drop view lake.s.w.files")
    owner.run("drop namespace lake.s.w")


def test_a_common_table_hides_no_view(owner: Session, caller: Session, folder: Path) -> None:
    owner.run("create or replace view lake.s.hidden as select 1 as a")
    rewrite(folder / "s" / "hidden", "select reflect('java.lang.System', 'getenv', 'HOME') as a")
    with pytest.raises(StatementError) as error:
        run_query(
            caller, "with w as (select * from s.hidden), hidden as (select 1) select * from w"
        )
    assert error.value.condition == NOT_ALLOWED


def test_views_of_views_are_bounded(owner: Session, caller: Session, folder: Path) -> None:
    owner.run("create or replace view lake.s.deep0 as select 1 as a")
    for level in range(1, 12):
        owner.run(f"create or replace view lake.s.deep{level} as select 1 as a")
        source = f"lake.s.deep{level - 1}"
        rewrite(folder / "s" / f"deep{level}", f"select l.a from {source} l, {source} r")
    assert run_query(caller, "select * from s.deep4") == 1
    with pytest.raises(StatementError, match="more than 1000 views"):
        run_query(caller, "select * from s.deep11")
    owner.run("create or replace view lake.s.endless as select 1 as a")
    rewrite(folder / "s" / "endless", "select * from lake.s.endless")
    with pytest.raises(StatementError, match="more than 1000 views|recursive|cycl"):
        run_query(caller, "select * from s.endless")


def test_statements_that_take_the_parser_too_long(caller: Session) -> None:
    run_query(caller, "select " + "(" * 200 + "1" + ")" * 200)
    run_query(caller, "select '" + "x" * 900_000 + "'")
    run_query(caller, "select '" + "(" * 400 + "' -- " + "(" * 400)
    deep = "(" * 20_000 + "1" + ")" * 20_000
    for sql in (
        f"select {deep}",
        f"/* {')' * 20_000} */ select {deep}",
        "select '" + "x" * 1_000_000 + "'",
    ):
        with pytest.raises(StatementError, match="more than 1000000 characters, or more than 300"):
            run_query(caller, sql)


def test_other_sessions_are_not_guarded(owner: Session) -> None:
    assert run_query(owner, "select java_method('java.lang.Math', 'abs', -1)") == 1


def test_a_server_without_the_guard(owner: Session) -> None:
    with pytest.raises(StatementError, match=r"append icebergstream\.StatementGuard"):
        require_guard(owner)
