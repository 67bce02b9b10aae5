"""What callers of the Flight SQL server may run, and ways around it."""

from __future__ import annotations

from typing import Any

import pytest

from dbt.adapters.iceberg_stream.flight.spark_text import NotAllowed
from dbt.adapters.iceberg_stream.flight.statements import check_statement

FILE = "`/etc/passwd`"


def view(sql: str) -> dict[str, Any]:
    version = {
        "version-id": 1,
        "default-catalog": "lake",
        "default-namespace": ["s"],
        "representations": [{"type": "sql", "dialect": "spark", "sql": sql}],
    }
    return {"view-uuid": "u", "current-version-id": 1, "versions": [version]}


class Catalog:
    """With tables in `s`, and views that are fine, and not."""

    name = "lake"
    VIEWS = {
        "fine": view("select id, upper(name) as name from t where x > 1 -- of s"),
        "calls": view("select java_method('java.lang.System', 'getenv', 'HOME')"),
        "reads": view(f"select * from spark_catalog.text.{FILE}"),
        "nested": view("select * from lake.s.calls"),
        "endless": view("select * from s.endless"),
    }

    def namespace_exists(self, namespace: str) -> bool:
        return namespace == "s"

    def metadata(self, name: tuple[str, str]) -> dict[str, Any] | None:
        if name[1] == "hostile":
            return {"properties": {"write.location-provider.impl": "java.lang.Runtime"}}
        return self.VIEWS.get(name[1])


@pytest.mark.parametrize(
    "sql",
    [
        "select 1",
        "select count(*) as n, max(x) from s.t where y in (1, 2) group by z;",
        "with a as (select * from s.t), b (c, d) as (values (1, 2)) select * from a, b",
        "select * from lake.s.t version as of 12",
        "select * from lake.s.t.snapshots",
        "select * from lake.s.t.branch_audit",
        "select * from s.t left join s.u using (id) where exists (select 1 from s.v)",
        "select /*+ broadcast(t) */ a /* of /* a */ text */ from s.t -- the end",
        "select 'a--b', '/* c */', 'it''s', 'it\\'s; drop table x', r'\\d', '${env:HOME}', 'ä{}'",
        "select lake.system.bucket(16, id), `größe` from s.t",
        "select transform(a, x -> x + 1), cast(a as decimal(10, 2)) from s.t",
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
def test_queries(sql: str) -> None:
    assert check_statement(sql, Catalog()).is_query


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
def test_changes(sql: str) -> None:
    assert not check_statement(sql, Catalog()).is_query


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
    "a path to explain": f"explain extended select * from text.{FILE}",
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
    "a schema somewhere else": "create namespace n location '/srv/x'",
    "a temporary view": f"create temporary view n using text options (path {FILE})",
    "a temporary view of a query": "create temporary view n as select 1",
    "a view of a path": f"create view s.n as select * from text.{FILE}",
    "a view that calls Java": "select * from s.calls",
    "a view that reads another catalog": "select * from s.reads",
    "a view of a view": "select * from s.nested",
    "a view of itself": "select * from s.endless",
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
}


@pytest.mark.parametrize("sql", WAYS_AROUND.values(), ids=WAYS_AROUND.keys())
def test_ways_around(sql: str) -> None:
    with pytest.raises(NotAllowed):
        check_statement(sql, Catalog())


def test_what_is_run_has_no_comments_and_hints() -> None:
    sql = "select /*+ repartition(3) */ 'a -- b' /* c */ from s.t -- d\n;"
    assert check_statement(sql, Catalog()).sql == "select   'a -- b'   from s.t"


@pytest.mark.parametrize("sql", ["select * from s.hostile", "insert into s.hostile values (1)"])
def test_tables_that_name_code(sql: str) -> None:
    with pytest.raises(NotAllowed, match=r"write\.location-provider\.impl.*names code"):
        check_statement(sql, Catalog())
