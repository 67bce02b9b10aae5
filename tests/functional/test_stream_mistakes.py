"""Mistakes in stream models: each is told with what is wrong, where, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

SOURCE = """
      - name: {name}
        config: {{meta: {{stream: {spec}}}}}
"""


def kafka(keys: str) -> str:
    return f"{{type: kafka, bootstrap_servers: '127.0.0.1:1', topic: t, {keys}}}"


SPECS = {
    "orders": '{type: files, path: landing, columns: "id bigint, status string, op string"}',
    "mistyped": '{type: files, path: landing, columns: "id bigint, status strng"}',
    "listed": "{type: files, path: landing, columns: [id bigint]}",
    "late": '{type: files, path: landing, columns: "id bigint", late_seconds: soon}',
    "options": '{type: files, path: landing, columns: "id bigint", options: [a]}',
    "flag": "{type: iceberg, changes: maybe}",
    "text": "files",
    "unknown": "{}",
    "metadata": kafka("columns: 'id bigint', metadata_columns: [ofset]"),
    "metadata_twice": kafka("columns: 'id bigint', metadata_columns: [key, key]"),
    "metadata_of_raw": kafka("format: raw, metadata_columns: [key]"),
    "metadata_taken": kafka("columns: 'id bigint, Key string', metadata_columns: [key]"),
    "no_schema": kafka("format: avro"),
    "no_file": kafka("format: avro, schema_file: schemas/none.avsc"),
    "no_avro": kafka("format: avro, schema_file: dbt_project.yml"),
    "file_of_json": kafka("columns: 'id int', schema_file: orders.avsc"),
    "file_of_keys": kafka("format: avro, schema_file: orders.avsc, tombstones: delete"),
    "file_of_registry": kafka("format: avro, schema_file: orders.avsc, subject: s"),
}
ORDERS = "{{ stream(source('landing', 'orders')) }}"
# A model's config and query, and what is said of it.
MISTAKES = {
    "deletes_syntax": ("apply_as_deletes='op == = 1'", "*", "`apply_as_deletes: op == = 1` cannot"),
    "deletes_open": ("apply_as_deletes='(op = 1'", "*", "`apply_as_deletes: (op = 1` cannot"),
    "deletes_column": ("apply_as_deletes='kind = 1'", "*", "`apply_as_deletes: kind = 1` cannot"),
    "deletes_type": (
        "apply_as_deletes='op'",
        "*",
        "`apply_as_deletes: op` must be a boolean expression, got string",
    ),
    "truncates": ("apply_as_truncates='nope'", "*", "`apply_as_truncates: nope` cannot be used"),
    "no_column": ("", "id, price", "with name `price` cannot be resolved"),
    "no_key": ("sequence_by='at'", "id", "`sequence_by` names `at`, which the query does not"),
    "twice": ("", "id, id", "The query returns id more than once"),
    "taken": ("soft_deletes='op'", "*", "The stream adds the column op to the table, and the"),
    "group": ("commit_group=['g']", "*", "`commit_group` must be a name; got ['g']"),
}
SOURCE_MISTAKES = {
    "mistyped": "Spark cannot parse the `columns` of the stream's source.",
    "listed": "`columns` must be text, as `name type, name type`; got ['id bigint']",
    "late": "`late_seconds` must be a number of seconds; got 'soon'",
    "options": "`options` must be a mapping of names to values; got ['a']",
    "flag": "`changes` must be true or false; got 'maybe'",
    "text": "`config.meta.stream` of the source landing.text must be a mapping",
    "unknown": "Create it, or set `config.meta.stream` of a source that is not an Iceberg table",
    "metadata": "`metadata_columns` must be a list of key, topic, partition, offset, timestamp, "
    "headers, or a mapping of columns to them; got ['ofset']",
    "metadata_twice": "or a mapping of columns to them; got ['key', 'key']",
    "metadata_of_raw": "`format: raw` has all columns of the metadata already: key, value, topic",
    "metadata_taken": "The source's `metadata_columns` and its records both have `key`. Give the "
    "column of the metadata another name, as in `metadata_columns: {kafka_key: key}`",
    "no_schema": "Avro needs a schema registry: set `schema.registry.url` in the `kafka` connection"
    " of the profile, or `schema_registry` in the source, or `schema_file` for messages without the"
    " id of a schema.",
    "no_file": "schemas/none.avsc cannot be read: No such file or directory. Set it to the path of"
    " an Avro schema, from the folder of the project.",
    "no_avro": "The schema in dbt_project.yml cannot be used: it is no Avro schema",
    "file_of_json": "`schema_file` is of messages in Avro: set `format: avro`",
    "file_of_keys": "`schema_file` cannot be used with `tombstones: delete`",
    "file_of_registry": "The source has `schema_file` and `subject`. Remove `subject` if",
}


def model(config: str, columns: str = "*", stream: str = ORDERS, kind: str = "stream") -> str:
    given = f"materialized='{kind}', unique_key='id'" + (f", {config}" if config else "")
    return f"{{{{ config({given}) }}}} select {columns} from {stream}"


class TestMistakes:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        listed = "".join(SOURCE.format(name=name, spec=spec) for name, spec in SPECS.items())
        models = {
            "sources.yml": f"sources:\n  - name: landing\n    tables:{listed}",
            "commented.sql": model("apply_as_deletes=\"op = 'd' -- deleted\""),
            "a_table.sql": model("", kind="table"),
            "a_text.sql": model("", stream="{{ stream('orders') }}"),
        }
        models |= {f"{name}.sql": model(*given[:2]) for name, given in MISTAKES.items()}
        for name in SOURCE_MISTAKES:
            stream = f"{{{{ stream(source('landing', '{name}')) }}}}"
            models[f"from_{name}.sql"] = model("", stream=stream)
        return models

    @pytest.fixture(scope="class")
    def said(self, project: Any) -> dict[str, str]:
        """What is said of each model."""
        folder = Path(project.project_root) / "landing"
        folder.mkdir()
        rows = [{"id": 1, "status": "new", "op": "c"}, {"id": 2, "status": "new", "op": "d"}]
        schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]}
        (Path(project.project_root) / "orders.avsc").write_text(json.dumps(schema))
        (folder / "1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        results = run_dbt(["run"], expect_pass=False)
        return {result.node.name: result.message for result in results}

    @pytest.mark.parametrize("name", MISTAKES)
    def test_of_a_model(self, said: dict[str, str], name: str) -> None:
        assert MISTAKES[name][2] in said[name]
        assert "JVM stacktrace" not in said[name]

    @pytest.mark.parametrize("name", SOURCE_MISTAKES)
    def test_of_a_source(self, said: dict[str, str], name: str) -> None:
        assert SOURCE_MISTAKES[name] in said[f"from_{name}"]
        assert "JVM stacktrace" not in said[f"from_{name}"]

    def test_of_what_streams(self, said: dict[str, str]) -> None:
        assert "is materialized as table. Set materialized='stream'" in said["a_table"]
        assert "stream(…) takes a source or a model" in said["a_text"]

    def test_a_condition_with_a_comment_is_none(self, said: dict[str, str]) -> None:
        assert said["commented"] == "STREAM 2 changes, 1 commits"


class TestWrongPath:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        listed = SOURCE.format(name="orders", spec=SPECS["orders"])
        return {
            "sources.yml": f"sources:\n  - name: landing\n    tables:{listed}",
            "orders.sql": model(""),
        }

    def test_it_is_told(self, project: Any) -> None:
        _, said = run_dbt_and_capture(["run"])
        assert "orders: landing has no data yet" in said
