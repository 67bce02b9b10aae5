"""Rows of a session's queries, from the cache where they are as good as Spark's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import SPARK_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

    from dbt.adapters.iceberg_stream.sessions.results import ResultCache

# Settings that may decide what a query gives; not those that change with every write.
DECIDING = ("spark.sql.", "spark.wap.")
TIME_ZONE = "spark.sql.session.timeZone"
OTHER = (SPARK_PREFIX, "spark.sql.catalog.")


class SessionResults:
    """The cache as one session may use it.

    Args:
        owner: tells whose token the session has at the moment: a renewed one may be of another.
    """

    def __init__(self, session: Session, cache: ResultCache, owner: Callable[[], str]) -> None:
        self._session = session
        self._cache = cache
        self._owner = owner
        self._deciding: dict[str, str] = {}

    def query(self, sql: str) -> tuple[pa.Table, bool]:
        """Rows of a query, and whether they come from the cache."""
        asker = self._asker()
        if asker is None or (cached := self._cache.find(sql, asker)) is None:
            return self._session.query(sql), False
        if (kept := self._cache.get(cached)) is not None:
            return kept, True
        rows = self._session.query(sql)
        # Past midnight, rows may be those of the day before.
        if self._asker() == asker:
            self._cache.put(cached, rows)
        return rows, False

    def _asker(self) -> dict[str, str] | None:
        """What beside text and tables decides the rows of a query; None if it is not known."""
        if not self._deciding:
            settings = self._session.settings(DECIDING)
            kept = {name: value for name, value in settings.items() if not name.startswith(OTHER)}
            # A server has one, also where nobody has set it.
            zone = {TIME_ZONE: self._session.setting(TIME_ZONE)}
            self._deciding = kept | zone | {"version": self._session.version()}
        try:
            # To a text that is a time of day Spark adds the date.
            today = str(datetime.now(ZoneInfo(self._deciding[TIME_ZONE])).date())
        except (ZoneInfoNotFoundError, ValueError):
            return None
        return self._deciding | {"owner": self._owner(), "today": today}
