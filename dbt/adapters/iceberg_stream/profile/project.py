"""A dbt project's catalog without dbt's commands, for the command line and for Python programs."""

from __future__ import annotations

from argparse import Namespace
from contextvars import copy_context
from pathlib import Path

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.profile.factory import make_catalog


def open_catalog(
    project_dir: str | Path = ".",
    profiles_dir: str | Path | None = None,
    target: str | None = None,
) -> IcebergCatalog:
    """The catalog of a project's profile, as its user; close it after use.

    Raises:
        DbtRuntimeError: there is no project, no such profile or target, or it is of another type.
    """
    credentials = load_credentials(project_dir, profiles_dir, target)
    return make_catalog(credentials, Path(project_dir))


def load_credentials(
    project_dir: str | Path = ".",
    profiles_dir: str | Path | None = None,
    target: str | None = None,
) -> IcebergStreamCredentials:
    """The credentials of a project's profile, read as dbt reads them, `env_var()` included.

    Raises:
        DbtRuntimeError: there is no project, no such profile or target, or it is of another type.
    """
    # In a context of its own: that of dbt, where this is called within it, stays as it is.
    return copy_context().run(_load_credentials, Path(project_dir), profiles_dir, target)


def _load_credentials(
    root: Path, profiles_dir: str | Path | None, target: str | None
) -> IcebergStreamCredentials:
    from dbt.cli.resolvers import default_profiles_dir
    from dbt.config.runtime import load_profile
    from dbt.flags import set_from_args
    from dbt_common.clients.system import get_env
    from dbt_common.context import set_invocation_context

    set_invocation_context(get_env())
    found = profiles_dir or (root if (root / "profiles.yml").exists() else default_profiles_dir())
    set_from_args(Namespace(PROFILES_DIR=str(found), PROJECT_DIR=str(root)), None)
    profile = load_profile(str(root), {}, target_override=target)
    if not isinstance(profile.credentials, IcebergStreamCredentials):
        raise DbtRuntimeError(
            f"The profile {profile.profile_name} is of type {profile.credentials.type}: "
            "iceberg_stream is needed here."
        )
    return profile.credentials
