from dbt_common.exceptions import DbtRuntimeError


class CatalogError(DbtRuntimeError):
    """The catalog cannot or will not do it: what, for whom, why, and what to do about it."""
