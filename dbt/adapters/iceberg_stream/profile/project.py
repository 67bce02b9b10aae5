"""Opens a dbt project's catalog outside dbt's commands, for the CLI and Python programs."""

from __future__ import annotations

from argparse import Namespace
from contextvars import copy_context
from functools import partial
from pathlib import Path

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.profile.factory import make_catalog


def open_catalog(
    project_dir: str | Path = ".",
    profiles_dir: str | Path | None = None,
    target: str | None = None,
) -> IcebergCatalog:
    """Open the catalog of a project's profile; close it after use.

    Args:
        project_dir: folder of the dbt project.
        profiles_dir: folder of profiles.yml; by default as for dbt.
        target: the profile's target; by default the profile's own.

    Raises:
        DbtRuntimeError: there is no project, profile or target, or the profile has another type.
    """
    credentials = load_credentials(project_dir, profiles_dir, target)
    return make_catalog(credentials.own_catalog(), Path(project_dir))


def open_catalogs(
    project_dir: str | Path = ".",
    profiles_dir: str | Path | None = None,
    target: str | None = None,
) -> Catalogs:
    """Open the catalogs of a project's profile, each on first use; close them after use.

    Catalogs that only catalogs.yml defines are left out: dbt reads this file with a project.

    Args:
        project_dir: folder of the dbt project.
        profiles_dir: folder of profiles.yml; by default as for dbt.
        target: the profile's target; by default the profile's own.

    Raises:
        DbtRuntimeError: there is no project, profile or target, or the profile has another type.
    """
    credentials, root = load_credentials(project_dir, profiles_dir, target), Path(project_dir)
    profiles = credentials.all_catalogs()
    return Catalogs(
        credentials.database, {each.name: partial(make_catalog, each, root) for each in profiles}
    )


def load_credentials(
    project_dir: str | Path = ".",
    profiles_dir: str | Path | None = None,
    target: str | None = None,
) -> IcebergStreamCredentials:
    """Load a project's profile as dbt does, `env_var()` included.

    Args:
        project_dir: folder of the dbt project.
        profiles_dir: folder of profiles.yml; by default as for dbt.
        target: the profile's target; by default the profile's own.

    Raises:
        DbtRuntimeError: there is no project, profile or target, or the profile has another type.
    """
    # A copied context, so that dbt's own context stays unchanged if this runs within dbt.
    return copy_context().run(_load_credentials, Path(project_dir), profiles_dir, target)


def _load_credentials(
    root: Path, profiles_dir: str | Path | None, target: str | None
) -> IcebergStreamCredentials:
    from dbt.config.runtime import load_profile
    from dbt.flags import set_from_args
    from dbt_common.clients.system import get_env
    from dbt_common.context import set_invocation_context

    set_invocation_context(get_env())
    folder = profiles_dir or _find_profiles(root)
    set_from_args(Namespace(PROFILES_DIR=str(folder), PROJECT_DIR=str(root)), None)
    profile = load_profile(str(root), {}, target_override=target)
    if not isinstance(profile.credentials, IcebergStreamCredentials):
        raise DbtRuntimeError(
            f"The profile {profile.profile_name} must have the type iceberg_stream, got "
            f"{profile.credentials.type}."
        )
    return profile.credentials


def _find_profiles(root: Path) -> Path:
    """Return the folder of the project's own profiles.yml, or else dbt's default."""
    if (root / "profiles.yml").exists():
        return root
    # Imports all commands of dbt.
    from dbt.cli.resolvers import default_profiles_dir

    return default_profiles_dir()
