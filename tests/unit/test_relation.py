"""Names of relations in SQL."""

from __future__ import annotations

import gc
import weakref

from dbt.adapters.iceberg_stream.relation import (
    IcebergStreamRelation,
    project_relation,
    staging_relation,
)

MODEL = IcebergStreamRelation.create(database="lake", schema="s", identifier="t")


def test_the_whole_name() -> None:
    assert MODEL.render() == "`lake`.`s`.`t`"
    assert MODEL.include(database=False).render() == "`s`.`t`"


def test_a_temporary_relation_as_packages_make_it() -> None:
    temporary = MODEL.incorporate(path={"schema": None, "identifier": "t_tmp"})
    assert temporary.render() == "`t_tmp`"
    assert MODEL.include(schema=False).render() == "`t`"
    assert MODEL.without_identifier().render() == "`lake`.`s`"


def test_a_function_has_one_name_also_in_a_build() -> None:
    staging = staging_relation(lambda catalog, schema, name: f"{name}__staged")
    for relation in (MODEL, staging.create(database="lake", schema="s", identifier="t")):
        assert str(relation.incorporate(type="function")) == "`s.t`"


def test_a_version_follows_the_name_of_the_table() -> None:
    tagged = MODEL.replace(as_of="'a tag'")
    assert str(tagged) == "`lake`.`s`.`t` version as of 'a tag'"
    assert str(tagged.replace(limit=0)) == f"(select * from {tagged} where false limit 0)"
    assert tagged.without_identifier().render() == "`lake`.`s`"
    assert tagged != MODEL


def test_a_class_of_relations_does_not_keep_its_adapter() -> None:
    """A program, or a session of tests, may run dbt many times."""

    class Adapter:
        def has_branch(self, _: IcebergStreamRelation) -> bool:
            return True

        def external_view(self, _: object) -> None:
            return None

        def identifier(self, catalog: str | None, schema: str, name: str) -> str:
            return f"{schema}_{name}"

    adapter = Adapter()
    relation = project_relation(adapter.has_branch, adapter.external_view)
    staged = staging_relation(adapter.identifier, relation)
    table = staged.create(database="lake", schema="s", identifier="t")
    assert table.render() == "`lake`.`s`.`s_t`"
    ended = weakref.ref(adapter)
    del adapter
    gc.collect()
    assert ended() is None
