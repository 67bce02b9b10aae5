"""What maintenance does with a table: steps, sort order and options, from a config or a command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from dbt.adapters.iceberg_stream.errors.wrong_values import misspelled, must_be, must_be_one_of

CONVERT_DELETES, COMPACT = "convert_deletes", "compact"
REWRITE_MANIFESTS = "rewrite_manifests"
EXPIRE_SNAPSHOTS, REMOVE_ORPHANS = "expire_snapshots", "remove_orphans"
COMPUTE_STATISTICS, TRIM_METADATA = "compute_statistics", "trim_metadata"
# In the order in which they run: each works on less after those before it.
STEP_NAMES = (
    CONVERT_DELETES,
    COMPACT,
    REWRITE_MANIFESTS,
    EXPIRE_SNAPSHOTS,
    REMOVE_ORPHANS,
    COMPUTE_STATISTICS,
    TRIM_METADATA,
)
# They keep all rows and all snapshots.
DEFAULT_STEPS = (CONVERT_DELETES, COMPACT, REWRITE_MANIFESTS)
# Those that models and operations may run.
AUTOMATIC_STEPS = tuple(name for name in STEP_NAMES if name != REMOVE_ORPHANS)
ORPHAN_AGE, KEEP_REMOVED = timedelta(hours=72), timedelta(days=7)
KEYS = ("steps", "sort", "options")
# Options of Iceberg's `rewrite_data_files`; other versions may have more.
COMPACT_OPTIONS = (
    "delete-file-threshold",
    "delete-ratio-threshold",
    "max-concurrent-file-group-rewrites",
    "max-file-group-size-bytes",
    "max-file-size-bytes",
    "max-files-to-rewrite",
    "min-file-size-bytes",
    "min-input-files",
    "output-spec-id",
    "partial-progress.enabled",
    "partial-progress.max-commits",
    "partial-progress.max-failed-commits",
    "remove-dangling-deletes",
    "rewrite-all",
    "rewrite-job-order",
    "target-file-size-bytes",
    "use-starting-sequence-number",
)


@dataclass(frozen=True)
class MaintenanceSettings:
    """What to do with a table.

    Attributes:
        steps: names of the steps; they run in the order of STEP_NAMES.
        sort: sort order for `compact`, as `rewrite_data_files` takes it; empty for the table's.
        options: of `rewrite_data_files`; they override those that `compact` chooses.
        removes_orphans: whether `remove_orphans` removes the files, instead of counting them.
        orphan_age: how old a file must be to count as an orphan.
        keep_removed: how long removed files are kept before they are deleted.
    """

    steps: tuple[str, ...] = DEFAULT_STEPS
    sort: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    removes_orphans: bool = False
    orphan_age: timedelta = ORPHAN_AGE
    keep_removed: timedelta = KEEP_REMOVED


def parse_maintenance(config: Any) -> tuple[MaintenanceSettings | None, list[str]]:
    """Parse the config `maintenance` of a model or the arguments of an operation.

    Args:
        config: a bool, the name of a step, names of steps, or a dictionary of KEYS.

    Returns:
        The settings, None if there is nothing to do; and a message for each error.
    """
    if config is None or config is False:
        return None, []
    if config is True:
        return MaintenanceSettings(), []
    if isinstance(config, str | list | tuple):
        config = {"steps": config}
    if not isinstance(config, Mapping):
        return None, [must_be("maintenance", config, "true, false, steps, or a dictionary")]
    names, errors = _parse_steps(config.get("steps"))
    unknown = [str(key) for key in config if key not in KEYS]
    errors += [f"unknown key `{key}`: the keys are {', '.join(KEYS)}" for key in unknown]
    sort, options = config.get("sort") or "", config.get("options") or {}
    if not isinstance(sort, str):
        errors.append(must_be("sort", sort, "a text, e.g. 'zorder(region, day)'"))
    if not isinstance(options, Mapping):
        errors.append(must_be("options", options, "a dictionary of options of rewrite_data_files"))
        options = {}
    errors += misspelled(options, COMPACT_OPTIONS)
    texts = {str(key): _text(value) for key, value in options.items()}
    return MaintenanceSettings(in_order(names), str(sort), texts), errors


def _parse_steps(steps: Any) -> tuple[list[str], list[str]]:
    """Return the names of steps, and a message for each error."""
    names = [steps] if isinstance(steps, str) else steps or DEFAULT_STEPS
    if not isinstance(names, list | tuple):
        return [], [must_be("steps", steps, "a list of steps")]
    errors = [
        must_be_one_of("steps", name, AUTOMATIC_STEPS)
        for name in names
        if name not in AUTOMATIC_STEPS
    ]
    if REMOVE_ORPHANS in names:
        errors.append(
            f"{REMOVE_ORPHANS} never runs by itself, because files of writes that still run look "
            "like orphans: run `iceberg-stream maintain … --remove-orphans`"
        )
    return [str(name) for name in names], errors


def in_order(steps: Iterable[str]) -> tuple[str, ...]:
    """Return steps in the order in which they run, each once.

    Args:
        steps: names of steps.
    """
    wanted = set(steps)
    return tuple(name for name in STEP_NAMES if name in wanted)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
