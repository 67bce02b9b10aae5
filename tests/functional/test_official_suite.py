from __future__ import annotations

from tests.official_suite import NOT_INHERITED, PAGE, inherited_classes, page, suite_classes


def test_the_page_lists_what_is_not_inherited() -> None:
    assert PAGE.read_text() == page(), "Run: python -m tests.official_suite"


def test_each_reason_is_needed() -> None:
    rest = set(suite_classes()) - inherited_classes()
    assert set(NOT_INHERITED) <= rest | {name.rpartition(".")[0] for name in rest}
