from dbt_common.exceptions import DbtRuntimeError


class CatalogError(DbtRuntimeError):
    """The catalog cannot or will not do it: what, for whom, why, and what to do about it."""


class CommitConflict(CatalogError):
    """Another writer was faster: nothing was changed, and the table is not what it was."""


class CommitStateUnknown(CatalogError):
    """The catalog's answer was lost: the commit may have been made."""
