"""The step `compact`: Iceberg's `rewrite_data_files`, where an estimate says that it pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dbt.adapters.iceberg_stream.maintenance.health import TableHealth
from dbt.adapters.iceberg_stream.maintenance.scan_cost import Deletes, ScanCost
from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.maintenance.steps.step import (
    Action,
    MaintenanceContext,
    Skip,
    TableState,
    counted,
    literal,
    seconds_text,
)

# A rewrite pays if a full scan gets faster by this share, or by this many seconds.
WORTHWHILE_SHARE, WORTHWHILE_SECONDS = 0.1, 1.0
# To apply deletes, all files with deletes are written again: they must cost a scan so much, or
# delete this share of the rows (Iceberg's default of `delete-ratio-threshold`).
DELETES_SHARE, DELETED_ROWS_SHARE = 0.05, 0.3
REWRITE_ALL, MIN_INPUT_FILES = "rewrite-all", "min-input-files"
# Beside streams: commits of at most so many bytes, so that few of them conflict with the stream.
STREAM_GROUP_BYTES, STREAM_COMMITS = 1024**3, 10


def pays(before: ScanCost, after: ScanCost) -> bool:
    """Return whether a full scan gets enough faster to be worth a rewrite.

    Args:
        before: of a scan now.
        after: of a scan after the rewrite.
    """
    saved = before.seconds - after.seconds
    return saved > 0 and saved >= min(WORTHWHILE_SECONDS, WORTHWHILE_SHARE * before.seconds)


def plan_compaction(
    context: MaintenanceContext, state: TableState, settings: MaintenanceSettings
) -> Skip | Action:
    """Plan to merge small files and to apply deletes.

    Args:
        context: what maintenance needs of the profile.
        state: the table.
        settings: sort order, and options of the procedure.
    """
    health = state.health
    if not health.data_files:
        return Skip("the table is empty")
    applies_deletes = _deletes_pay(health)
    after = health.cost
    if applies_deletes:
        after = replace(health.cost_after_compact, equality=Deletes())
    after = replace(after, data_files=health.data_files - _files_saved(health, settings.options))
    forced = settings.options.get(REWRITE_ALL) == "true"
    saving = (
        f"{counted(health.small_files, 'small file')} to merge, "
        f"{counted(health.delete_files, 'delete file')}; a full "
        f"scan would take about {seconds_text(after.seconds)} instead of "
        f"{seconds_text(health.cost.seconds)}"
    )
    if not forced and not pays(health.cost, after):
        return Skip(f"does not pay: {saving}")
    arguments = _arguments(health, settings, applies_deletes)

    def run() -> str:
        result = context.procedure("rewrite_data_files", state.name, arguments)
        detail = (
            f"{counted(result['rewritten_data_files_count'], 'data file')} rewritten as "
            f"{result['added_data_files_count']}"
        )
        if failed := result.get("failed_data_files_count"):
            detail += (
                f"; {failed} were left, because other writers changed them meanwhile: run the step "
                "again"
            )
        return detail

    return Action(f"rewrite all {health.data_files} data files" if forced else saving, run)


def _files_saved(health: TableHealth, options: Mapping[str, str]) -> int:
    """Return how many files fewer there are, if the user's options let small files be merged."""
    fewest = options.get(MIN_INPUT_FILES, "")
    too_few = fewest.isdigit() and health.small_files < int(fewest)
    return 0 if too_few else health.files_saved


def _deletes_pay(health: TableHealth) -> bool:
    """Return whether it pays to write all files with deletes again."""
    cost, without = health.cost, replace(health.cost, positional=Deletes(), equality=Deletes())
    saved = cost.seconds - without.seconds
    if saved >= max(WORTHWHILE_SECONDS, DELETES_SHARE * cost.seconds):
        return True
    return health.deleted_share >= DELETED_ROWS_SHARE and pays(cost, without)


def _arguments(
    health: TableHealth, settings: MaintenanceSettings, applies_deletes: bool
) -> dict[str, str]:
    options = {"remove-dangling-deletes": "true"}
    if applies_deletes:
        options["delete-file-threshold"] = "1"
    if health.streams:
        options |= {
            "partial-progress.enabled": "true",
            "partial-progress.max-commits": str(STREAM_COMMITS),
            "max-file-group-size-bytes": str(STREAM_GROUP_BYTES),
        }
    options |= settings.options
    # Without a sort order, `sort` is refused.
    is_sorted = bool(settings.sort) or health.is_sorted
    arguments = {"strategy": literal("sort" if is_sorted else "binpack")}
    if settings.sort:
        arguments["sort_order"] = literal(settings.sort)
    return arguments | {"options": _map(options)}


def _map(options: Mapping[str, str]) -> str:
    pairs = (f"{literal(key)}, {literal(value)}" for key, value in sorted(options.items()))
    return f"map({', '.join(pairs)})"
