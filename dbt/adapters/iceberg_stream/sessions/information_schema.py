"""`information_schema`: statements read its views as temporary views of their session."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.builds.names import split_staged
from dbt.adapters.iceberg_stream.catalog.information_schema import VIEWS, information_schema
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.sql.information_schema import NAME, Mention, mentions, with_views
from dbt.adapters.iceberg_stream.sql.statements import classify

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
    from dbt.adapters.iceberg_stream.engines.session import Session


class InformationSchema:
    """The views of `information_schema` that a session has.

    Each statement gets its own, as the catalog is when it begins.

    Args:
        session: the session.
        catalogs: the catalogs.
    """

    def __init__(self, session: Session, catalogs: Catalogs) -> None:
        self._session = session
        self._catalogs = catalogs
        self._numbers = count()
        self._names: list[str] = []

    def prepare(self, sql: str) -> str:
        """Return a statement that reads temporary views instead of `information_schema`.

        Args:
            sql: the statement.

        Raises:
            StatementError: there is no such view, or the statement would keep it.
        """
        # A namespace of the catalog with this name is the user's own.
        wanted = [
            mention
            for mention in mentions(sql, self._catalogs.names)
            if NAME not in self._catalogs.get(mention.catalog).namespaces()
        ]
        if not wanted:
            return sql
        statement = classify(sql)
        if statement.on_view and statement.writes:
            raise StatementError(
                f"The view reads `{NAME}`, which exists only in queries of this adapter. "
                "Materialize the model as `table`."
            )
        return with_views(sql, [(mention, self._register(mention)) for mention in wanted])

    def drop(self) -> None:
        """Drop the temporary views, before another node uses the session."""
        while self._names:
            self._session.run(f"drop view if exists {self._names.pop()}")

    def _register(self, mention: Mention) -> str:
        if mention.view not in VIEWS:
            raise StatementError(
                f"`{NAME}` has no view `{mention.view}`. It has {', '.join(sorted(VIEWS))}."
            )
        rows = information_schema(
            self._catalogs.get(mention.catalog),
            mention.view,
            mention.columns,
            mention.asks_for_namespace,
            lambda name: mention.asks_for_table(name) and split_staged(name) is None,
        )
        name = f"{NAME}_{mention.view}_{next(self._numbers)}"
        self._session.register(name, rows)
        self._names.append(name)
        return name
