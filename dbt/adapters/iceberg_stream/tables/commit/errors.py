"""Errors of commits, in a module that imports neither PyIceberg nor PyArrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


class ValidationFailed(CatalogError):
    """Another writer's commit conflicts with this change, whose files cannot be committed.

    Attributes:
        added: data files of other writers that the change should have read.
        removed: paths of files that the change removes and that others have removed already.
    """

    def __init__(self, message: str, added: list[DataFile], removed: set[str]) -> None:
        super().__init__(message)
        self.added = added
        self.removed = removed
