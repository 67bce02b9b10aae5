import pytest

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.table_config import (
    Term,
    literal,
    parse_table_config,
    parse_term,
)


@pytest.mark.parametrize(
    ("text", "sql", "spec_name"),
    [
        ("id", "`id`", "identity"),
        ("a.b", "`a`.`b`", "identity"),
        ("days(ts)", "days(`ts`)", "day"),
        ("date_hour(ts)", "hours(`ts`)", "hour"),
        ("Month( `the day` )", "months(`the day`)", "month"),
        ("bucket(16, id)", "bucket(16, `id`)", "bucket[16]"),
        ("truncate(name, 4)", "truncate(4, `name`)", "truncate[4]"),
    ],
)
def test_terms(text: str, sql: str, spec_name: str) -> None:
    term = parse_term(text)
    assert term is not None
    assert (term.sql, term.spec_name) == (sql, spec_name)


@pytest.mark.parametrize("text", ["weekly(ts)", "bucket(id)", "day(3, ts)", "a b", "", "day(ts"])
def test_terms_that_do_not_parse(text: str) -> None:
    assert parse_term(text) is None


def test_create_clauses() -> None:
    config, faults = parse_table_config(
        {
            "partition_by": ["day(at)", "region"],
            "table_properties": {"it's": True},
            "format_version": 3,
            "target_file_size": "64 MB",
            "location": "s3://b/t",
        }
    )
    assert faults == []
    assert config.create_clauses.splitlines() == [
        "partitioned by (days(`at`), `region`)",
        "location 's3://b/t'",
        "tblproperties ('format-version' = '3', 'it\\'s' = 'true', "
        "'write.target-file-size-bytes' = '67108864')",
    ]


def test_a_model_that_says_nothing() -> None:
    config, faults = parse_table_config({})
    assert (config.create_clauses, config.partition_by, faults) == ("", None, [])


def test_all_faults_at_once() -> None:
    _, faults = parse_table_config(
        {"partition_by": "x(y)", "sort_order": ["a b"], "format_version": 9, "distribution": "odd"}
    )
    assert len(faults) == 4


@pytest.mark.parametrize(
    ("distribution", "clause"),
    [
        (None, "write ordered by `a` desc nulls last, days(`t`) asc nulls first"),
        ("none", "write locally ordered by `a` desc nulls last, days(`t`) asc nulls first"),
        (
            "hash",
            "write distributed by partition locally ordered by `a` desc nulls last, "
            "days(`t`) asc nulls first",
        ),
    ],
)
def test_write_order(distribution: str | None, clause: str) -> None:
    config, _ = parse_table_config(
        {"sort_order": ["a desc", "day(t)"], "distribution": distribution}
    )
    assert config.write_order == clause


def test_literal() -> None:
    assert literal("a'b\\c") == "'a\\'b\\\\c'"


def test_merge_mode_sets_all_three() -> None:
    config, _ = parse_table_config({"merge_mode": "merge-on-read"})
    assert set(config.properties) == {"write.merge.mode", "write.update.mode", "write.delete.mode"}


def test_format_version_1_has_no_delete_files() -> None:
    for version in ({"format_version": 1}, {"table_properties": {"format-version": 1}}):
        _, errors = parse_table_config({"merge_mode": "merge-on-read", **version})
        assert len(errors) == 1
        assert "`merge_mode: merge-on-read` needs delete files" in errors[0]
        assert not parse_table_config({"merge_mode": "copy-on-write", **version})[1]
    assert not parse_table_config({"merge_mode": "merge-on-read", "format_version": 2})[1]


def test_a_term_is_equal_to_the_one_in_the_spec() -> None:
    assert parse_term("bucket(4, id)") == Term("bucket", "id", 4)


@pytest.mark.parametrize(
    ("term", "created", "added"),
    [
        ("day(at)", "at_day", "at_day"),
        ("bucket(4, id)", "id_bucket", "id_bucket_4"),
        ("truncate(2, s)", "s_trunc", "s_trunc_2"),
        ("id", None, None),
    ],
)
def test_names_of_partition_fields(term: str, created: str | None, added: str | None) -> None:
    """Those of Iceberg, which no column may have."""
    columns = ["at", "id", "s", "at_day", "id_bucket", "id_bucket_4", "s_trunc", "s_trunc_2"]
    parsed = parse_term(term)
    assert parsed is not None
    for name, is_added in ((created, False), (added, True)):
        parsed.require_free_name([column for column in columns if column != name], is_added)
        if name is not None:
            with pytest.raises(CatalogError, match=f"names its partition field `{name}`, but"):
                parsed.require_free_name(columns, is_added)
