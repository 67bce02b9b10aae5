"""Models that take in one source and are committed together: their threads meet here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import ExitStack
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
    _first: tuple[str, Any, bool] | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _end: Future[None] = field(default_factory=Future)

    def run(
        self,
        member: str,
        place: Any,
        refresh: bool,
        table: TableStream,
        start: Callable[[Sequence[TableStream]], None],
        look: Callable[[], None],
    ) -> None:
        """Run the stream of all members, once all are here; ends when it ends.

        `place` tells the source, and `refresh` whether the member begins anew; `start` runs the
        stream, and is called by one member only; `look` is called now and then by those that wait,
        and raises where waiting is of no use.

        Raises:
            StreamError: members do not go together, or one of them did not come; otherwise what
                the stream raises.
        """
        with self._turn:
            self._check(member, place, refresh, table.writer.options)
            self._tables[member] = table
            leads = len(self._tables) == len(self.members) and not self._end.done()
        if not leads:
            self._wait(look)
            return
        with ExitStack() as end:
            end.push(self._tell)
            start([self._tables[name] for name in sorted(self._tables)])

    def _tell(self, _: object, error: BaseException | None, __: object) -> None:
        """However the stream ends, those that wait learn of it."""
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)

    def leave(self, member: str) -> None:
        """A node of dbt's has ended: a member that has not come will not come any more."""
        with self._turn:
            missing = member in self.members and member not in self._tables
            if missing and not self._end.done():
                self._end.set_exception(
                    StreamError(
                        f"{member} of the commit group `{self.name}` was not run, and the others "
                        "are committed together with it."
                    )
                )

    def _wait(self, look: Callable[[], None]) -> None:
        while True:
            try:
                return self._end.result(LOOK_SECONDS)
            except NotYet:
                look()

    def _check(self, member: str, place: Any, refresh: bool, options: StreamOptions) -> None:
        if self._first is None:
            self._first = member, place, refresh
        other, known, anew = self._first
        if refresh != anew:
            raise StreamError(
                f"{member if refresh else other} is to be rebuilt (`full_refresh`) and "
                f"{other if refresh else member} is not, and both are in the commit group "
                f"`{self.name}`: set `full_refresh` alike for all of them."
            )
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
        self._groups: dict[str, Group] = {}
        self._ended: set[str] = set()
        self._turn = threading.Lock()
        listen(self._notice)

    def meet(self, name: str, members: frozenset[str]) -> Group:
        """The group, for one of its members."""
        with self._turn:
            group = self._groups.setdefault(name, Group(name, members))
            ended = members & self._ended
        for member in ended:
            group.leave(member)
        return group

    def _notice(self, event: Any) -> None:
        """A node that has ended: a member may have failed before it came, or was skipped."""
        if event.info.name != "NodeFinished":
            return
        with self._turn:
            ended = str(event.data.node_info.unique_id)
            self._ended.add(ended)
            groups = list(self._groups.values())
        for group in groups:
            group.leave(ended)


@dataclass(frozen=True)
class Grouping:
    """The models of all commit groups, as dbt's graph has them.

    Attributes:
        members: of each group.
        reads: what each node of the graph reads.
        selected: nodes that this run has.
    """

    members: Mapping[str, Sequence[str]]
    reads: Mapping[str, Sequence[str]]
    selected: frozenset[str]

    @classmethod
    def of(cls, nodes: Mapping[str, Mapping[str, Any]], selected: Sequence[str]) -> Grouping:
        """What the nodes of dbt's graph say."""
        members: dict[str, list[str]] = {}
        for name, node in nodes.items():
            group = node["config"].get("commit_group")
            # What is no name is told by the model that has it.
            if isinstance(group, str) and node["config"].get("materialized") == "stream":
                members.setdefault(group, []).append(name)
        reads = {
            name: (node.get("depends_on") or {}).get("nodes", []) for name, node in nodes.items()
        }
        return cls(members, reads, frozenset(selected))

    def require_whole(self, group: str, threads: int) -> None:
        """Check that a group can be run as one.

        Raises:
            StreamError: a member is not selected or reads another one, or there are not threads
                enough for all.
        """
        members = self.members[group]
        if missing := [member for member in members if member not in self.selected]:
            raise StreamError(
                f"The models of the commit group `{group}` are committed together, and this run "
                f"leaves out {', '.join(missing)}. Select all of them, as by "
                f"--select config.commit_group:{group}"
            )
        if through := self._reads_itself(group):
            raise StreamError(
                f"{through} waits for the commit group `{group}` to end, and a model of the group "
                f"for it: models of a group must not read each other, be it by way of others."
            )
        needed = sum(len(self.selected & set(several)) for several in self.members.values())
        if threads < needed:
            raise StreamError(
                f"The {needed} models of commit groups run at the same time, and dbt has {threads} "
                f"threads: set `threads: {needed}` in the profile, or run with --threads {needed}."
            )

    def _reads_itself(self, group: str) -> str | None:
        """A node that reads a group and is waited for by it; a group ends as a whole."""
        group_of = {name: group for group, several in self.members.items() for name in several}
        waiting, seen = list(self.members[group]), set(self.members[group])
        while waiting:
            name = waiting.pop()
            for read in self.reads.get(name, ()):
                if group_of.get(read) == group:
                    return name
                for more in self.members.get(group_of.get(read, ""), [read]):
                    if more not in seen:
                        seen.add(more)
                        waiting.append(more)
        return None
