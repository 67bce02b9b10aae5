"""Which base classes of dbt's official test suite for adapters these tests inherit.

`python -m tests.official_suite` writes docs/official_suite.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import dbt.tests.adapter

SUITE = "dbt.tests.adapter"
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "official_suite.md"

POSTGRES = "not applicable", "it has a profile for Postgres; other tests cover `dbt debug`"
JAVASCRIPT = "not applicable", "Spark runs no JavaScript"
GRANTS = "not applicable", "the catalog keeps the privileges, and Spark has no `grant` for it"
MISSING = "missing", "there are no materialized views yet"
# Why the other classes are not inherited, by the name of the class, or of its module.
NOT_INHERITED = {
    "dbt_debug.test_dbt_debug": POSTGRES,
    "functions.test_js_udfs": JAVASCRIPT,
    "functions.test_udfs.CanFindScalarFunctionRelation": (
        "not applicable",
        "no Iceberg catalog keeps functions",
    ),
    "grants.test_incremental_grants": GRANTS,
    "grants.test_invalid_grants": GRANTS,
    "grants.test_model_grants": GRANTS,
    "grants.test_seed_grants": GRANTS,
    "grants.test_snapshot_grants": GRANTS,
    "materialized_view.basic": MISSING,
    "materialized_view.changes": MISSING,
    "utils.test_current_timestamp.BaseCurrentTimestampNaive": (
        "excluded",
        "by `BaseCurrentTimestampAware`: timestamps have a time zone",
    ),
    "utils.test_escape_single_quotes.BaseEscapeSingleQuotesQuote": (
        "excluded",
        "by `BaseEscapeSingleQuotesBackslash`, Spark's escape",
    ),
}


def suite_classes() -> list[str]:
    """Return the base classes with tests, such as `basic.test_base.BaseSimpleMaterializations`."""
    root = Path(dbt.tests.adapter.__path__[0])
    files = (file.relative_to(root).with_suffix("") for file in sorted(root.rglob("*.py")))
    modules = (import_module(".".join([SUITE, *f.parts])) for f in files if f.name != "__init__")
    return sorted(
        _suite_name(kind)
        for module in modules
        for kind in _classes(module)
        if not kind.__name__.startswith("Test") and any(n.startswith("test") for n in dir(kind))
    )


def inherited_classes() -> set[str]:
    """Return the classes of the suite that tests in tests/functional/ inherit, or build together."""
    files = (file.relative_to(ROOT) for file in (ROOT / "tests/functional").rglob("test_*.py"))
    modules = (import_module(".".join(file.with_suffix("").parts)) for file in files)
    return {
        _suite_name(base)
        for module in modules
        for kind in (*_classes(module), *getattr(module, "BUILT_TOGETHER", ()))
        if kind.__name__.startswith("Test") or kind.__module__ != module.__name__
        for base in kind.__mro__
        if base.__module__.startswith(SUITE)
    }


def page() -> str:
    """Return docs/official_suite.md."""
    classes, inherited = suite_classes(), inherited_classes()
    rest = [name for name in classes if name not in inherited]
    reasons = {name: _reason(name) for name in rest}
    lines = [
        "# dbt's official test suite",
        "",
        "dbt-tests-adapter has the tests that every adapter should pass. Of its "
        f"{len(classes)} base classes with",
        f"tests, the tests of this adapter inherit {len(classes) - len(rest)}, all of them on "
        "Iceberg tables. These are the others:",
        "",
        "| base class | | why |",
        "| --- | --- | --- |",
        *(f"| `{name}` | {kind} | {why} |" for name, (kind, why) in reasons.items()),
    ]
    return "\n".join(lines) + "\n"


def _classes(module: ModuleType) -> Iterator[type]:
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if kind.__module__ == module.__name__:
            yield kind


def _suite_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}".removeprefix(f"{SUITE}.")


def _reason(name: str) -> tuple[str, str]:
    return NOT_INHERITED.get(name) or NOT_INHERITED[name.rpartition(".")[0]]


if __name__ == "__main__":
    PAGE.write_text(page())
