"""Keeps the parsed project between commands, for as long as dbt would parse the same again."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache
from dbt_common.exceptions import DbtBaseException

from dbt.adapters.iceberg_stream.shell.project_files import (
    FileState,
    FileStates,
    are_same,
    read_state,
    read_states,
)

if TYPE_CHECKING:
    from dbt.config import RuntimeConfig
    from dbt.contracts.graph.manifest import Manifest

Parse = Callable[..., "Manifest"]

# Of how many combinations of target and `--vars` the project stays parsed.
KEPT = 4
# Commands that write manifest.json when they end.
WRITING_COMMANDS = {"build", "clone", "compile", "run", "seed", "show", "snapshot", "test"}
NOTICED = ("warn", "error")


@dataclass
class _Kept:
    """A parsed project, and what it was parsed from.

    Attributes:
        pickled: the fields of the manifest, before any command changed them.
        target: what the profile tells the project of the connection.
        variables: the environment variables that the project reads.
        files: the files that dbt read.
        written: the state of manifest.json when a command had written it from this manifest.
    """

    pickled: bytes
    target: Mapping[str, Any]
    variables: Mapping[str, str | None]
    files: FileStates
    written: FileState | None = None


class ManifestCache:
    """Gives dbt's commands the manifest of an earlier command if nothing has changed.

    dbt's own `dbtRunner(manifest=…)` cannot be used: the manifest has to be chosen before dbt has
    read profile, project and `--vars`, it would carry what one command compiled into the next, and
    dbt would neither register the catalogs of catalogs.yml nor name the new command in the
    artifacts.
    """

    def __init__(self) -> None:
        self._kept: LRUCache[Hashable, _Kept] = LRUCache(KEPT)
        self._last: tuple[_Kept, Path] | None = None

    @contextmanager
    def used_by_dbt(self) -> Iterator[None]:
        """Let the commands that dbt runs within the block use this cache."""
        from dbt.cli import requires

        parse = requires.parse_manifest
        requires.parse_manifest = partial(self._get, parse)
        self._last = None
        try:
            yield
            self._note_written()
        finally:
            requires.parse_manifest = parse

    def clear(self) -> None:
        """Forget all manifests, so that the next command parses the project."""
        self._kept.clear()

    def _get(
        self,
        parse: Parse,
        config: RuntimeConfig,
        write_perf_info: bool,
        write: bool,
        write_json: bool,
        active_integrations: list[Any],
    ) -> Manifest:
        """Return the manifest of a command; the arguments are those of `parse_manifest`."""
        parse = partial(parse, config, write_perf_info, write, write_json, active_integrations)
        # `dbt parse` reports how long it takes.
        if write_perf_info or not _may_keep(config):
            return parse()
        try:
            files = read_states(config.load_dependencies().values())
        except DbtBaseException:
            # A package is missing or broken, which dbt reports when it parses.
            return parse()
        key = _key(config)
        kept: _Kept | None = self._kept.get(key)
        if kept is None or not _is_current(kept, config, files):
            manifest, kept = _parse(parse, config, files)
            self._kept.pop(key, None)
            if kept is not None:
                self._kept[key] = kept
        else:
            kept.files = files
            manifest = _restore(kept.pickled)
            _connect(config, manifest, active_integrations)
            if write and write_json:
                _write(config, manifest, kept)
        if kept is not None and write and write_json:
            self._last = kept, Path(config.project_target_path) / "manifest.json"
        return manifest

    def _note_written(self) -> None:
        if self._last is not None:
            kept, path = self._last
            kept.written = read_state(str(path))


def _may_keep(config: RuntimeConfig) -> bool:
    from dbt.flags import get_flags
    from dbt.plugins import get_plugin_manager

    flags = get_flags()
    if not (flags.PARTIAL_PARSE and flags.PARTIAL_PARSE_FILE_DIFF) or flags.PARTIAL_PARSE_FILE_PATH:
        return False
    # Plugins of dbt may add other models to each command.
    return not get_plugin_manager(config.project_name).get_nodes().models


def _key(config: RuntimeConfig) -> Hashable:
    """Return what else dbt compares: the project, variables, the target and how it warns."""
    from dbt.flags import get_flags

    flags, arguments = get_flags(), config.args
    return (
        str(config.project_root),
        str(config.project_target_path),
        pformat(config.cli_vars),
        str(getattr(arguments, "profile", None)),
        str(getattr(arguments, "target", None)),
        str(flags.WARN_ERROR),
        repr(flags.WARN_ERROR_OPTIONS),
    )


def _is_current(kept: _Kept, config: RuntimeConfig, files: FileStates) -> bool:
    return (
        kept.target == config.to_target_dict()
        and kept.variables == _environment(kept.variables)
        and are_same(kept.files, files)
    )


def _environment(names: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def _parse(
    parse: Callable[[], Manifest], config: RuntimeConfig, files: FileStates
) -> tuple[Manifest, _Kept | None]:
    """Parse the project, and return what to keep: nothing if each command must warn again."""
    from dbt.deprecations import active_deprecations
    from dbt_common.events.event_manager_client import get_event_manager

    noticed: list[Any] = []

    def on_event(event: Any) -> None:
        if event.info.level in NOTICED:
            noticed.append(event)

    manager, deprecations = get_event_manager(), dict(active_deprecations)
    manager.callbacks.append(on_event)
    try:
        manifest = parse()
    finally:
        manager.callbacks.remove(on_event)
    # With a flag of dbt 1.12, the warnings of a parse come after it.
    is_silent = not noticed and not getattr(manager, "allow_deferral", False)
    if not is_silent or deprecations != active_deprecations:
        return manifest, None
    names = {**manifest.env_vars, **config.project_env_vars, **config.profile_env_vars}
    kept = _Kept(_pickle(manifest), config.to_target_dict(), _environment(names), files)
    return manifest, kept


def _pickle(manifest: Manifest) -> bytes:
    # Not the manifest itself: pickle would confuse fields, because dbt's `__reduce_ex__` names
    # fewer than there are. The private ones are indexes that dbt makes again.
    names = (each.name for each in fields(manifest) if not each.name.startswith("_"))
    values = {name: getattr(manifest, name) for name in names}
    return pickle.dumps(values, pickle.HIGHEST_PROTOCOL)


def _restore(pickled: bytes) -> Manifest:
    """Return the manifest as this command would have parsed it."""
    from dbt.contracts.graph.manifest import Manifest
    from dbt_common.invocation import get_invocation_id

    manifest = Manifest(**pickle.loads(pickled))
    manifest.build_parent_and_child_maps()
    manifest.metadata.generated_at = datetime.now(timezone.utc).replace(tzinfo=None)
    manifest.metadata.invocation_id = get_invocation_id()
    return manifest


def _connect(config: RuntimeConfig, manifest: Manifest, active_integrations: list[Any]) -> None:
    """Register the adapter and give it the manifest, as dbt does when it parses."""
    from dbt.adapters.factory import get_adapter, register_adapter
    from dbt.context.providers import generate_runtime_macro_context
    from dbt.context.query_header import generate_query_header_context
    from dbt.mp_context import get_mp_context

    register_adapter(config, get_mp_context())
    adapter = get_adapter(config)
    adapter.set_macro_context_generator(generate_runtime_macro_context)
    for integration in active_integrations:
        adapter.add_catalog_integration(integration)
    adapter.set_macro_resolver(manifest)
    header = generate_query_header_context(adapter.config, manifest)
    adapter.connections.set_query_header(header)


def _write(config: RuntimeConfig, manifest: Manifest, kept: _Kept) -> None:
    """Write manifest.json, unless it is there and the command will write it anyway."""
    from dbt.parser.manifest import write_manifest
    from dbt.plugins import get_plugin_manager

    path = str(Path(config.project_target_path) / "manifest.json")
    before, now = kept.written, read_state(path)
    is_there = before is not None and now is not None and before.is_same(now, path)
    if is_there and config.args.which in WRITING_COMMANDS:
        return
    write_manifest(manifest, config.project_target_path)
    plugins = get_plugin_manager(config.project_name)
    for name, artifact in plugins.get_manifest_artifacts(manifest).items():
        artifact.write(name)
