"""Models that take in one source and are committed together: their threads meet here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.stream.errors import StreamError

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.stream.options import StreamOptions
    from dbt.adapters.iceberg_stream.stream.table_stream import TableStream

# What members of a group must agree on: their batches are the same.
SHARED = ("batch_interval", "commit_interval", "batch_rows", "idle_interval", "on_no_transactions")
LOOK_SECONDS = 0.5


@dataclass
class Group:
    """Models of one `commit_group` in one run of dbt.

    Each is run by a thread of dbt's own. The last one that comes runs the stream of all, and the
    others wait for its end.
    """

    name: str
    members: frozenset[str]
    _tables: dict[str, TableStream] = field(default_factory=dict)
    _place: tuple[str, Any] | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _end: Future[None] = field(default_factory=Future)

    def run(
        self,
        member: str,
        place: Any,
        table: TableStream,
        start: Callable[[Sequence[TableStream]], None],
        look: Callable[[], None],
    ) -> None:
        """Run the stream of all members, once all are here; ends when it ends.

        `place` tells the source; `start` runs the stream, and is called by one member only; `look`
        is called now and then by those that wait, and raises where waiting is of no use.

        Raises:
            StreamError: members do not go together, or one of them did not come; otherwise what
                the stream raises.
        """
        with self._turn:
            self._check(member, place, table.writer.options)
            self._tables[member] = table
            leads = len(self._tables) == len(self.members)
        if not leads:
            self._wait(look)
            return
        try:
            start([self._tables[name] for name in sorted(self._tables)])
        except BaseException as error:
            self._end.set_exception(error)
            raise
        self._end.set_result(None)

    def node_finished(self, event: Any) -> None:
        """Notice events of dbt's: a member that has failed or was skipped will not come."""
        if event.info.name != "NodeFinished":
            return
        member = str(event.data.node_info.unique_id)
        with self._turn:
            missing = member in self.members and member not in self._tables
            if missing and not self._end.done():
                self._end.set_exception(
                    StreamError(
                        f"{member} of the commit group `{self.name}` was not run, and the others "
                        "are committed together with it."
                    )
                )

    @property
    def is_over(self) -> bool:
        return self._end.done()

    def _wait(self, look: Callable[[], None]) -> None:
        while True:
            try:
                return self._end.result(LOOK_SECONDS)
            except NotYet:
                look()

    def _check(self, member: str, place: Any, options: StreamOptions) -> None:
        if self._place is None:
            self._place = member, place
        other, known = self._place
        if place != known:
            raise StreamError(
                f"{member} and {other} are in the commit group `{self.name}` and read different "
                "sources. The tables of a group take in one source, such as one topic: only there "
                "it is known which changes belong together."
            )
        for table in self._tables.values():
            for name in SHARED:
                theirs, ours = getattr(table.writer.options, name), getattr(options, name)
                if theirs != ours:
                    raise StreamError(
                        f"`{name}` is {ours} for {member} and {theirs} for {table.status.name}, "
                        f"which are in the commit group `{self.name}`: set it for the group's "
                        "folder in dbt_project.yml."
                    )


class Groups:
    """The commit groups of one run of dbt; `listen` has a function called with dbt's events."""

    def __init__(self, listen: Callable[[Callable[[Any], None]], None]) -> None:
        self._listen = listen
        self._groups: dict[str, Group] = {}
        self._turn = threading.Lock()

    def meet(self, name: str, members: frozenset[str]) -> Group:
        """The group, for one of its members."""
        with self._turn:
            group = self._groups.get(name)
            if group is None or group.is_over:
                group = self._groups[name] = Group(name, members)
                self._listen(group.node_finished)
            return group


def require_whole(
    model: str, name: str, members: Mapping[str, bool], threads: int, needed: int
) -> None:
    """Check that a group can be run as one.

    `members` says of each whether it is selected; `needed` are the models of all groups that are.

    Raises:
        StreamError: a member is not selected, or there are not threads enough for all.
    """
    if missing := [member for member, selected in members.items() if not selected]:
        raise StreamError(
            f"{model} is committed together with {', '.join(missing)} (commit group `{name}`), "
            f"which this run leaves out. Select all of them, as by --select "
            f"config.commit_group:{name}"
        )
    if threads < needed:
        raise StreamError(
            f"The {needed} models of commit groups run at the same time, and dbt has {threads} "
            f"threads: set `threads: {needed}` in the profile, or run with --threads {needed}."
        )
