"""Errors of builds."""

from __future__ import annotations

from collections.abc import Sequence

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.catalog import Name
from dbt.adapters.iceberg_stream.errors.redacted import RedactedError


class BuildError(RedactedError, DbtRuntimeError):
    """A build cannot be staged, published or discarded."""


class BuildConflict(BuildError):
    """Other writers changed published tables since they were staged.

    Args:
        build: name of the build.
        conflicts: each table and what happened to it.

    Attributes:
        names: the tables.
        reasons: what happened, in sentences.
    """

    def __init__(self, build: str, conflicts: Sequence[tuple[Name, str]]) -> None:
        self.names = [name for name, _ in conflicts]
        lines = "\n".join(f"  - {'.'.join(name)} {reason}" for name, reason in conflicts)
        self.reasons = (
            f"The build `{build}` cannot be published, because published tables changed since it "
            f"read them:\n{lines}"
        )
        models = " ".join(f"{name[1]}+" for name in self.names)
        super().__init__(
            f"{self.reasons}\nNothing was published. Build them again from the current "
            f"tables: ICEBERG_STREAM_BUILD={build} dbt build --select {models}\n"
            f"Then run `iceberg-stream publish {build}`, or `iceberg-stream discard {build}` to "
            "give the build up. With `rebuild_on_conflict: true` in the profile, a run does so "
            "itself."
        )
