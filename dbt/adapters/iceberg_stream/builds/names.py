"""Names of builds and of their staged relations.

A staged relation is beside the published one, so it needs no other rights and no other folder:
`shop.orders` is staged as `shop.orders__dbt_build_pr-42`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TypeVar, cast

from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.catalog.catalog import Name

# Of one catalog, or qualified by a catalog's name.
AnyName = TypeVar("AnyName", bound=tuple[str, ...])

MARK = "__dbt_build_"
_NAME = re.compile(r"[a-z0-9]+([_-][a-z0-9]+)*")
LONGEST_NAME = 40
# No build: the staged tables of streams' full refreshes, which take them over themselves. They are
# hidden as those of builds are; `iceberg-stream builds` lists them, and `discard` drops them.
STREAM_REFRESH = "stream-full-refresh"
# Before an alias that only a staged relation needs: the text of a published view has none.
ALIAS = " as /* staged */ "
_ALIAS = re.compile(re.escape(ALIAS) + "`(?:[^`]|``)*`")
_HASH_OF_TEST = re.compile(r"\.[0-9a-f]{10}$")
# As `iceberg_stream__make_staged_relation` names a relation that will replace another one, which
# is complete as soon as that one is dropped, or that will be a new one.
_REPLACEMENT = re.compile(r"(.+)__dbt_(staged|new)_[0-9a-f]{12}", re.DOTALL)


def check_build_name(build: str) -> str:
    """Return the name of a build, if it may be built and published.

    Raises:
        BuildError: it is not.
    """
    if len(build) > LONGEST_NAME or not _NAME.fullmatch(build):
        raise BuildError(
            f"`{build}` is not a valid name of a build. Use at most {LONGEST_NAME} lower-case "
            "letters and digits, with single `-` or `_` between them, such as `pr-42`."
        )
    if build == STREAM_REFRESH:
        raise BuildError(
            f"`{build}` is not a build: full refreshes of streams write to these tables until they "
            "are complete, and the streams publish them. If a stream was stopped before that, the "
            "next run of its model drops its table. Choose another name for a build."
        )
    return build


def staged_identifier(identifier: str, build: str) -> str:
    """Return the identifier under which a build stages a relation."""
    return f"{identifier}{MARK}{build}"


def staged_name(name: Name, build: str) -> Name:
    """Return the name under which a build stages a relation."""
    return name[0], staged_identifier(name[1], build)


def split_staged(identifier: str) -> tuple[str, str] | None:
    """Split the identifier of a staged relation.

    Returns:
        The published identifier and the build; None for other relations.
    """
    published, mark, build = identifier.rpartition(MARK)
    return (published, build) if mark and published and _NAME.fullmatch(build) else None


def replaced_name(identifier: str) -> str | None:
    """Return the identifier that a relation gets when it is ready; None for other relations.

    See `leftovers.py`.

    Args:
        identifier: of a relation.
    """
    match = _REPLACEMENT.fullmatch(identifier)
    return None if match is None else match[1]


def is_replacement(identifier: str) -> bool:
    """Return whether a relation replaces another one, rather than being a new one.

    Args:
        identifier: of the relation.
    """
    match = _REPLACEMENT.fullmatch(identifier)
    return match is not None and match[2] == "staged"


def without_build(name: AnyName) -> AnyName:
    """Return the published name of a relation, which may be staged."""
    parts = split_staged(name[-1])
    return cast(AnyName, (*name[:-1], parts[0])) if parts else name


def without_marks(text: str, builds: Collection[str]) -> str:
    """Return a text in which staged relations have their published identifiers.

    Args:
        text: the text.
        builds: names of builds that may be in it, and be followed by more; others are as long as
            names can be.
    """
    known = [re.escape(build) for build in sorted(builds, key=len, reverse=True)]
    return re.sub(f"{MARK}({'|'.join([*known, _NAME.pattern])})", "", text)


def published_tables(namespace: str, relations: Iterable[tuple[str, str]]) -> list[Name]:
    """Return the tables of a namespace without those that a build has staged, sorted.

    Args:
        namespace: the namespace.
        relations: identifiers and kinds (`table` or `view`) that the catalog lists.
    """
    tables = sorted(identifier for identifier, kind in relations if kind == "table")
    return [(namespace, table) for table in tables if split_staged(table) is None]


def with_published_names(sql: str, build: str) -> str:
    """Return a query that reads the published relations instead of a build's staged ones.

    Args:
        sql: the query, with quoted names as the adapter renders them, and aliases after `ALIAS`.
        build: the build.
    """
    sql = _ALIAS.sub("", sql)
    return sql.replace(f"{MARK}{build}`", "`")


def node_titles(unique_ids: Iterable[str]) -> list[str]:
    """Return what users call nodes: `orders` for `model.shop.orders`.

    Args:
        unique_ids: of the nodes; of a hook its statement, as `operation.hook.…`.
    """
    return [_HASH_OF_TEST.sub("", unique_id.split(".", 2)[-1]) for unique_id in unique_ids]
