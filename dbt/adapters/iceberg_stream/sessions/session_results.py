"""Rows of a session's queries, from the result cache if possible."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dbt.adapters.iceberg_stream.engines.interpretation import INTERPRETED
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import SPARK_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

    from dbt.adapters.iceberg_stream.sessions.results import ResultCache

# Prefixes of settings that may change a query's rows, and of those among them that do not.
RELEVANT = ("spark.sql.", "spark.wap.")
TIME_ZONE = "spark.sql.session.timeZone"
IRRELEVANT = (SPARK_PREFIX, "spark.sql.catalog.", *INTERPRETED)


class SessionResults:
    """The cache as one session may use it.

    Args:
        session: the session.
        cache: the result cache.
        owner: returns a digest of the owner of the token that the session has now; a renewed token
            may belong to someone else.
    """

    def __init__(self, session: Session, cache: ResultCache, owner: Callable[[], str]) -> None:
        self._session = session
        self._cache = cache
        self._owner = owner
        self._settings: dict[str, str] = {}

    def query(self, sql: str, run: Callable[[str], pa.Table]) -> tuple[pa.Table, bool]:
        """Return the rows of a query, and whether they come from the cache.

        Args:
            sql: the query.
            run: runs it.
        """
        context = self._context()
        if context is None or (cached := self._cache.find(sql, context)) is None:
            return run(sql), False
        if (cached_rows := self._cache.get(cached)) is not None:
            return cached_rows, True
        rows = run(sql)
        # After midnight the rows may still be those of the day before.
        if self._context() == context:
            self._cache.put(cached, rows)
        return rows, False

    def _context(self) -> dict[str, str] | None:
        """Return what else determines a query's rows beside text and tables; None if unknown."""
        if not self._settings:
            settings = self._session.settings(RELEVANT)
            relevant = {k: v for k, v in settings.items() if not k.startswith(IRRELEVANT)}
            # The server has a time zone even if no setting names it.
            zone = {TIME_ZONE: self._session.setting(TIME_ZONE)}
            self._settings = relevant | zone | {"version": self._session.version()}
        try:
            # Spark completes a string that is a time of day with the current date.
            today = str(datetime.now(ZoneInfo(self._settings[TIME_ZONE])).date())
        except (ZoneInfoNotFoundError, ValueError):
            return None
        return self._settings | {"owner": self._owner(), "today": today}
