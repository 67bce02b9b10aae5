"""Hooks of materializations whose rows go into files by our own writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import SpawnContext
from typing import TYPE_CHECKING, Any, cast

from dbt.adapters.base import BaseRelation, available
from dbt.adapters.contracts.connection import AdapterResponse
from dbt.adapters.sql import SQLAdapter
from dbt_common.events.event_manager_client import get_event_manager
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.stream.groups import Grouping, Groups

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.cache.invalidation import WriteNotice
    from dbt.adapters.iceberg_stream.impl import IcebergStreamAdapter
    from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition


class OwnWrites(SQLAdapter):
    """Each hook hands over to the room that does the work."""

    _notice: WriteNotice

    def __init__(self, config: Any, mp_context: SpawnContext) -> None:
        super().__init__(config, mp_context)
        self._streams: dict[str, SourceDefinition] = {}
        self._groups = Groups(_listen)

    def set_macro_resolver(self, macro_resolver: Any) -> None:
        """Called by dbt as each of its runs begins: the groups are those of the run."""
        super().set_macro_resolver(macro_resolver)
        self._groups = Groups(_listen)

    @available.parse_none
    def merge_by_rewrite(self, *arguments: Any) -> AdapterResponse | None:
        """Merge by rewriting the files that change, or say why the merge is Spark's."""
        from dbt.adapters.iceberg_stream.merging import merge_by_rewrite

        return self._noticed(merge_by_rewrite(self, *arguments))

    @available.parse_none
    def change_rows(self, *arguments: Any) -> AdapterResponse | None:
        """Update or delete rows of a table by key, for hooks and operations."""
        from dbt.adapters.iceberg_stream.merging import change_rows

        return self._noticed(change_rows(self, *arguments))

    @available.parse_none
    def say_why_spark(self, done: AdapterResponse, why: IcebergStreamResponse) -> None:
        """Have the answer of Spark's MERGE, if one was run, say why it was Spark's."""
        if isinstance(done, IcebergStreamResponse):
            done.merge_engine, done.merge_engine_reason = why.merge_engine, why.merge_engine_reason

    @available.parse_none
    def build_seed(self, *arguments: Any) -> AdapterResponse | None:
        """Make the table of a seed; None if that is left to Spark, from a temporary view."""
        from dbt.adapters.iceberg_stream.local_data import build_seed

        return self._noticed(build_seed(self, *arguments))

    @available.parse_none
    def build_python_model(self, *arguments: Any) -> AdapterResponse | None:
        """Run a Python model and make its table; None if the table is left to Spark."""
        from dbt.adapters.iceberg_stream.local_data import build_python_model

        return self._noticed(build_python_model(self, *arguments))

    @available.parse(lambda *a, **k: "__stream_source")
    def declare_stream(
        self,
        model: Mapping[str, Any],
        relation: BaseRelation,
        configured: Mapping[str, Any] | None,
        given: Mapping[str, Any],
    ) -> str:
        """Note what a stream model reads; the name that it has in the model's query."""
        from dbt.adapters.iceberg_stream.stream_models import VIEW
        from dbt.adapters.iceberg_stream.streaming import require_stream, source_definition

        require_stream(model)
        self._streams[str(model["unique_id"])] = source_definition(relation, configured, given)
        return VIEW

    @available.parse(lambda *a, **k: [])
    def stream_columns(self, model: Mapping[str, Any], sql: str) -> list[tuple[str, str]]:
        """Names and types of the columns of a stream model's table."""
        from dbt.adapters.iceberg_stream.streaming import stream_columns

        return stream_columns(self._adapter(), sql, model, self._stream_of(model))

    @available.parse_none
    def run_stream(
        self,
        model: Mapping[str, Any],
        relation: BaseRelation,
        sql: str,
        refresh: bool,
        nodes: Mapping[str, Mapping[str, Any]],
        selected: Sequence[str],
    ) -> AdapterResponse | None:
        """Take in what the model's source has; `nodes` are those of dbt's graph."""
        from dbt.adapters.iceberg_stream.streaming import run_stream

        source, group = self._stream_of(model), None
        if name := model["config"].get("commit_group"):
            grouping = Grouping.of(nodes, selected)
            grouping.require_whole(name, self.config.threads)
            group = self._groups.meet(name, frozenset(grouping.members[name]))
        adapter = self._adapter()
        return self._noticed(run_stream(adapter, relation, sql, model, source, refresh, group))

    def _stream_of(self, model: Mapping[str, Any]) -> SourceDefinition:
        found = self._streams.get(str(model["unique_id"]))
        if found is None:
            raise DbtRuntimeError(
                f"{model['unique_id']} is a stream and names none: select from "
                "`{{ stream(source('schema', 'name')) }}` or `{{ stream(ref('model')) }}`."
            )
        return found

    def _adapter(self) -> IcebergStreamAdapter:
        """All hooks of the adapter, which has these as its base."""
        return cast("IcebergStreamAdapter", self)

    def _noticed(self, response: IcebergStreamResponse | None) -> IcebergStreamResponse | None:
        """Tell of a write of our own; of Spark's it has been told."""
        ours = response is not None and response.merge_engine != "spark"
        if response is not None and ours and response.snapshot_id is not None:
            self._notice.after_write(response)
        return response

    @available.parse_none
    def run_python_model(self, model: Mapping[str, Any], code: str, view: str) -> None:
        """Run a Python model and make its result a temporary view."""
        from dbt.adapters.iceberg_stream.local_data import run_to_view

        run_to_view(self, model, code, view)


def _listen(told: Callable[[Any], None]) -> None:
    get_event_manager().add_callback(told)
