"""What the expressions of a query need besides their own text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.query.values import Function, Unsupported, Value, call

# Reads a setting of the session.
Setting = Callable[[str], str]
UTC = ("UTC", "Etc/UTC", "GMT", "Z")
FIXED_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d\d):(\d\d)")
# Times are computed for sessions with these settings.
TIMES = {"spark.sql.ansi.enabled": "true", "spark.sql.timestampType": "TIMESTAMP_LTZ"}
TIME_ZONE = "spark.sql.session.timeZone"


@dataclass
class Inputs:
    """What the translated expressions of a query need, and where they may differ from Spark's.

    Attributes:
        setting: reads a setting of the session; without it, expressions that depend on the session
            are unsupported.
        columns: columns of the source.
        doubts: conditions of rows for which Spark may have another result.
    """

    setting: Setting | None = None
    columns: set[str] = field(default_factory=set)
    doubts: list[Value] = field(default_factory=list)

    def doubt(self, function: Function, *values: Value) -> None:
        """Add a condition of rows for which Spark may have another result.

        Args:
            function: computes it.
            values: its arguments.
        """
        self.doubts.append(call(function, pa.bool_(), *values))

    @cached_property
    def offset(self) -> int:
        """How many minutes the session's time zone is ahead of UTC.

        Raises:
            Unsupported: this changes with the seasons, or the session's settings for times are
                others than Spark's defaults.
        """
        if (setting := self.setting) is None:
            raise Unsupported
        for name, expected in TIMES.items():
            if (value := setting(name)).upper() != expected.upper():
                raise Unsupported(f"times with `{name}: {value}`")
        zone = setting(TIME_ZONE)
        if zone in UTC:
            return 0
        if (match := FIXED_OFFSET.fullmatch(zone)) is None:
            raise Unsupported(f"times in the time zone {zone}")
        sign, hours, minutes = match.groups()
        return int(f"{sign}1") * (int(hours) * 60 + int(minutes))

    def require_times(self) -> None:
        """Require a session in which texts that meet times are cast to times.

        Raises:
            Unsupported: see `offset`.
        """
        _ = self.offset
