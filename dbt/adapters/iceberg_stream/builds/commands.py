"""What the commands of a build have run, recorded with its staged relations.

Each command has a record of its own, because several may use a build at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from dbt.adapters.iceberg_stream.catalog.catalog import Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX

# Before the id of a command, in the name of the property that has its record.
RECORD = f"{PREFIX}build.command."


@dataclass(frozen=True)
class CommandRecord:
    """The state of a command, when it was written last. Nodes have dbt's unique ids.

    Attributes:
        command: dbt's id of the command.
        at: time of the record (ISO 8601, UTC).
        has_ended: whether the command has ended; if not, it still runs or was interrupted.
        failed: the nodes that failed or were skipped.
        planned: the nodes that it has not run.
        resolved: nodes in the records of other commands that have succeeded since, or that the
            project does not have any more.
        relations: published names of all relations of the build; empty while the command runs.
    """

    command: str
    at: str
    has_ended: bool
    failed: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    resolved: tuple[str, ...] = ()
    relations: tuple[Name, ...] = ()

    def as_property(self) -> dict[str, str]:
        """Return the property of a staged relation that has the record."""
        fields = asdict(self)
        del fields["command"]
        text = json.dumps({name: value for name, value in fields.items() if value != ()})
        return {f"{RECORD}{self.command}": text}

    @classmethod
    def of_property(cls, name: str, text: str) -> CommandRecord:
        """Read a property.

        Raises:
            ValueError, KeyError: it is not a record.
        """
        fields = json.loads(text)
        nodes = {name: tuple(fields.get(name) or ()) for name in ("failed", "planned", "resolved")}
        return cls(
            name.removeprefix(RECORD),
            fields["at"],
            bool(fields["has_ended"]),
            **nodes,
            relations=tuple((one[0], one[1]) for one in fields.get("relations") or ()),
        )


def record_properties(relation: Metadata | None) -> dict[str, str]:
    """Return the properties of a staged relation that have records of commands.

    Args:
        relation: its metadata; None if there is none.
    """
    properties = (relation or {}).get("properties") or {}
    return {name: text for name, text in properties.items() if name.startswith(RECORD)}


def command_records(relations: Iterable[Metadata]) -> list[CommandRecord]:
    """Return the last record of each command of a build, oldest first.

    Args:
        relations: metadata of its staged tables and views.
    """
    records: dict[str, CommandRecord] = {}
    for relation in relations:
        for name, text in record_properties(relation).items():
            record = CommandRecord.of_property(name, text)
            known = records.get(record.command)
            if known is None or (record.at, record.has_ended) > (known.at, known.has_ended):
                records[record.command] = record
    return sorted(records.values(), key=lambda record: record.at)


def without_relations(relation: Metadata) -> dict[str, str]:
    """Return the records that list relations, as properties without the lists.

    Args:
        relation: metadata of a staged relation.
    """
    records = (CommandRecord.of_property(*item) for item in record_properties(relation).items())
    changed: dict[str, str] = {}
    for record in records:
        if record.relations:
            changed |= replace(record, relations=()).as_property()
    return changed


def unresolved(records: Iterable[CommandRecord]) -> tuple[list[str], list[str]]:
    """Return the nodes that keep a build from being published.

    Args:
        records: of all its commands, oldest first.

    Returns:
        The nodes that failed, and those that a command has not run, and that have not succeeded
        in another command since.
    """
    states: dict[str, bool] = {}
    for record in records:
        for node in record.resolved:
            states.pop(node, None)
        states.update(dict.fromkeys(record.planned, False))
        states.update(dict.fromkeys(record.failed, True))
    return [n for n, failed in states.items() if failed], [n for n, f in states.items() if not f]


def has_ended(records: Iterable[CommandRecord], planned: Iterable[str]) -> bool:
    """Return whether all commands have ended, but for those whose nodes others have run.

    Args:
        records: of all commands of a build, oldest first.
        planned: the nodes that none has run, as `unresolved` returns them.
    """
    records, planned = list(records), set(planned)
    if not records:
        return True
    running = [record for record in records if not record.has_ended]
    return records[-1].has_ended and not any(planned & {*record.planned} for record in running)
