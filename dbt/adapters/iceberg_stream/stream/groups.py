"""Run the models of a commit group as one stream, with one commit for all of them.

dbt runs each model in a thread; the threads of a group wait for each other here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.stream.errors import StreamError

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.stream.options import StreamOptions
    from dbt.adapters.iceberg_stream.stream.table_stream import TableStream

# Options that all members must set alike, because they share their batches.
SHARED_OPTIONS = (
    "batch_interval",
    "commit_interval",
    "batch_rows",
    "idle_interval",
    "on_no_transactions",
)
# Seconds between two calls of `poll`.
POLL_SECONDS = 0.5


@dataclass
class Group:
    """Models of one `commit_group` in one run of dbt.

    dbt runs each member in a thread. The last member to arrive runs the stream of all members,
    and the others wait until it ends.

    Attributes:
        name: the `commit_group`.
        members: unique ids of its models.
    """

    name: str
    members: frozenset[str]
    _tables: dict[str, TableStream] = field(default_factory=dict)
    # Member, source and `full_refresh` of the first member to arrive.
    _first: tuple[str, Any, bool] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _outcome: Future[None] = field(default_factory=Future)

    def run(
        self,
        member: str,
        source_identity: Any,
        refresh: bool,
        table: TableStream,
        start: Callable[[Sequence[TableStream]], None],
        poll: Callable[[], None],
    ) -> None:
        """Run the stream of all members once all have arrived; return when it has ended.

        Args:
            member: unique id of the model that arrives.
            source_identity: `SourceDefinition.identity` of its source.
            refresh: whether the member is rebuilt (`full_refresh`).
            table: the member's table.
            start: runs the stream of the tables; called by one member only.
            poll: called every half second while the member waits; raises to stop waiting.

        Raises:
            StreamError: members contradict each other, or a member was not run; otherwise what
                the stream or `poll` raises.
        """
        with self._lock:
            self._check(member, source_identity, refresh, table.writer.options)
            self._tables[member] = table
            leads = len(self._tables) == len(self.members) and not self._outcome.done()
        if not leads:
            self._wait(poll)
            return
        with ExitStack() as end:
            end.push(self._set_outcome)
            start([self._tables[name] for name in sorted(self._tables)])

    def _set_outcome(self, _: object, error: BaseException | None, __: object) -> None:
        """Pass the result or the error of the stream to the waiting members."""
        if error is None:
            self._outcome.set_result(None)
        else:
            self._outcome.set_exception(error)

    def node_finished(self, node: str) -> None:
        """Fail the group if an ended node of dbt's graph is a member that never arrived.

        Args:
            node: unique id of any ended node.
        """
        with self._lock:
            missing = node in self.members and node not in self._tables
            if missing and not self._outcome.done():
                self._outcome.set_exception(
                    StreamError(
                        f"{node} of the commit group `{self.name}` was not run, so the group was "
                        "not committed. Fix or select it, and run the group again."
                    )
                )

    def _wait(self, poll: Callable[[], None]) -> None:
        while True:
            try:
                return self._outcome.result(POLL_SECONDS)
            except FutureTimeoutError:
                poll()

    def _check(
        self, member: str, source_identity: Any, refresh: bool, options: StreamOptions
    ) -> None:
        if self._first is None:
            self._first = member, source_identity, refresh
        other, others_source, others_refresh = self._first
        if refresh != others_refresh:
            raise StreamError(
                f"{member if refresh else other} is rebuilt (`full_refresh`) and "
                f"{other if refresh else member} is not, and both are in the commit group "
                f"`{self.name}`. Set `full_refresh` to the same value for all of them."
            )
        if source_identity != others_source:
            raise StreamError(
                f"{member} and {other} are in the commit group `{self.name}` and read different "
                "sources. All models of a group must read one source, such as one topic, because "
                "only one source tells which changes belong together."
            )
        for table in self._tables.values():
            for name in SHARED_OPTIONS:
                theirs, ours = getattr(table.writer.options, name), getattr(options, name)
                if theirs != ours:
                    raise StreamError(
                        f"`{name}` is {ours} for {member} and {theirs} for {table.status.name}, "
                        f"which are in the commit group `{self.name}`. Set it once, for the "
                        "group's folder in dbt_project.yml."
                    )


class Groups:
    """The commit groups of one run of dbt.

    Args:
        listen: registers a callback for dbt's events.
    """

    def __init__(self, listen: Callable[[Callable[[Any], None]], None]) -> None:
        self._groups: dict[str, Group] = {}
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        listen(self._on_event)

    def get(self, name: str, members: frozenset[str]) -> Group:
        """Return the group; all members get the same object.

        Args:
            name: the `commit_group`.
            members: unique ids of all its models.
        """
        with self._lock:
            group = self._groups.setdefault(name, Group(name, members))
            ended = members & self._ended
        for member in ended:
            group.node_finished(member)
        return group

    def _on_event(self, event: Any) -> None:
        """Pass on each ended node: a member may fail or be skipped before it arrives."""
        if event.info.name != "NodeFinished":
            return
        with self._lock:
            ended = str(event.data.node_info.unique_id)
            self._ended.add(ended)
            groups = list(self._groups.values())
        for group in groups:
            group.node_finished(ended)


@dataclass(frozen=True)
class Grouping:
    """The models of all commit groups, from dbt's graph.

    Attributes:
        members: unique ids of the models of each group.
        reads: unique ids of the nodes that each node of the graph reads.
        selected: unique ids of the nodes of this run.
    """

    members: Mapping[str, Sequence[str]]
    reads: Mapping[str, Sequence[str]]
    selected: frozenset[str]

    @classmethod
    def of(cls, nodes: Mapping[str, Mapping[str, Any]], selected: Sequence[str]) -> Grouping:
        """Collect the commit groups of dbt's graph.

        Args:
            nodes: the nodes of dbt's graph by their unique ids.
            selected: unique ids of the nodes of this run.
        """
        members: dict[str, list[str]] = {}
        for name, node in nodes.items():
            group = node["config"].get("commit_group")
            # The model itself reports a value that is not a string.
            if isinstance(group, str) and node["config"].get("materialized") == "stream":
                members.setdefault(group, []).append(name)
        reads = {
            name: (node.get("depends_on") or {}).get("nodes", []) for name, node in nodes.items()
        }
        return cls(members, reads, frozenset(selected))

    def check_runnable(self, group: str, threads: int) -> None:
        """Check that all members of a group can run at the same time.

        Args:
            group: the `commit_group`.
            threads: dbt's number of threads.

        Raises:
            StreamError: a member is not selected or reads another one, or there are not enough
                threads for all groups.
        """
        members = self.members[group]
        if missing := [member for member in members if member not in self.selected]:
            raise StreamError(
                f"The models of the commit group `{group}` are committed together, and this run "
                f"leaves out {', '.join(missing)}. Select all of them, for example by "
                f"--select config.commit_group:{group}"
            )
        if through := self._find_cycle(group):
            raise StreamError(
                f"{through} waits for the commit group `{group}` to end, and a model of the group "
                "waits for it. Models of a group must not read each other, directly or through "
                "other models."
            )
        needed = sum(len(self.selected & set(models)) for models in self.members.values())
        if threads < needed:
            raise StreamError(
                f"The {needed} models of commit groups run at the same time, and dbt has {threads} "
                f"threads. Set `threads: {needed}` in the profile, or run with --threads {needed}."
            )

    def _find_cycle(self, group: str) -> str | None:
        """Return a node that reads the group and is read by it, if there is one."""
        group_of = {name: group for group, models in self.members.items() for name in models}
        pending, visited = list(self.members[group]), set(self.members[group])
        while pending:
            name = pending.pop()
            for read in self.reads.get(name, ()):
                if group_of.get(read) == group:
                    return name
                for node in self.members.get(group_of.get(read, ""), [read]):
                    if node not in visited:
                        visited.add(node)
                        pending.append(node)
        return None
