"""Names of relations in SQL."""

from __future__ import annotations

from dbt.adapters.iceberg_stream.relation import IcebergStreamRelation

MODEL = IcebergStreamRelation.create(database="lake", schema="s", identifier="t")


def test_the_whole_name() -> None:
    assert MODEL.render() == "`lake`.`s`.`t`"
    assert MODEL.include(database=False).render() == "`s`.`t`"


def test_a_temporary_relation_as_packages_make_it() -> None:
    temporary = MODEL.incorporate(path={"schema": None, "identifier": "t_tmp"})
    assert temporary.render() == "`t_tmp`"
    assert MODEL.include(schema=False).render() == "`t`"
    assert MODEL.without_identifier().render() == "`lake`.`s`"
