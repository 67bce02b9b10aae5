"""A client of Spark Connect for SQL only.

It has Spark's own messages, but not Spark's client, whose import (with pandas) takes as long as all
else that a small command does.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import grpc
from grpc_status import rpc_status
from pyspark.sql.connect.proto import (
    SQL,
    AnalyzePlanRequest,
    CheckpointCommand,
    CloneSessionRequest,
    Command,
    ConfigRequest,
    CreateDataFrameViewCommand,
    DataType,
    ExecutePlanRequest,
    ExecutePlanResponse,
    InterruptRequest,
    KeyValue,
    Limit,
    Plan,
    Relation,
    ReleaseSessionRequest,
    RemoveCachedRemoteRelationCommand,
    ResultChunkingOptions,
    SqlCommand,
    UserContext,
)
from pyspark.sql.connect.proto.base_pb2_grpc import SparkConnectServiceStub

from dbt.adapters.iceberg_stream.__version__ import version
from dbt.adapters.iceberg_stream.engines.channel import open_channel
from dbt.adapters.iceberg_stream.engines.execution import Execution, retried, send
from dbt.adapters.iceberg_stream.engines.settings import Endpoint

if TYPE_CHECKING:
    import pyarrow as pa

CLIENT_TYPE = f"dbt-iceberg-stream/{version}"
# Requests that no server has answered. Spark has no class for them.
NO_ANSWER = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
ProgressHandler = Callable[..., None]


class Stage(NamedTuple):
    """The progress of a stage, with the names of Spark's client."""

    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int


class SqlClient:
    """A session on a Spark Connect server.

    Every method raises what `on_error` raises if the server reports an error, and grpc.RpcError if
    it does not answer.

    Args:
        endpoint: the server.
        session_id: the session's id; the server creates the session with the first request.
        channel_options: options of the gRPC channel.
        on_error: raises the exception for an error that the server reports.

    Attributes:
        session_id: the session's id.
        retries: how often to call a server again that does not answer.
        progress_handlers: are called while plans run, with stages, inflight_tasks, operation_id and
            done.
        answered_at: when the server answered last (`time.monotonic`); minus infinity if never.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        session_id: str,
        channel_options: Mapping[str, int],
        on_error: Callable[[grpc.RpcError], NoReturn],
    ) -> None:
        self.session_id = session_id
        self.retries = 0
        self.progress_handlers: list[ProgressHandler] = []
        self.answered_at = -math.inf
        self._channel = open_channel(endpoint, channel_options)
        self._stub = SparkConnectServiceStub(self._channel)
        self._on_error = on_error
        # Like Spark's client: the server keeps a session for each pair of user and id.
        self._user = UserContext(user_id=os.getenv("SPARK_USER", os.getenv("USER", "")))
        self._server_session_id: str | None = None

    def run(self, sql: str) -> Relation:
        """Run a command; its rows stay on the server.

        Args:
            sql: the command.

        Returns:
            The rows, to `fetch`.
        """
        source = Relation(sql=SQL(query=sql))
        plan = Plan(command=Command(sql_command=SqlCommand(input=source)))
        result = source
        for response in self._execute(plan):
            if response.HasField("sql_command_result"):
                result = response.sql_command_result.relation
        return result

    def stage(self, view: str, sql: str) -> None:
        """Run a query, and create a temporary view of its rows, which the server keeps.

        Args:
            view: quoted name of the view.
            sql: the query.
        """
        command = CheckpointCommand(relation=query(sql), local=True, eager=True)
        kept = Relation()
        for response in self._execute(Plan(command=Command(checkpoint_command=command))):
            if response.HasField("checkpoint_command_result"):
                relation = response.checkpoint_command_result.relation
                kept.cached_remote_relation.CopyFrom(relation)
        create = CreateDataFrameViewCommand(input=kept, name=view, replace=True)
        forget = RemoveCachedRemoteRelationCommand(relation=kept.cached_remote_relation)
        for then in (
            Command(create_dataframe_view=create),
            Command(remove_cached_remote_relation_command=forget),
        ):
            for _ in self._execute(Plan(command=then)):
                pass

    def rows(self, relation: Relation) -> Generator[DataType.Struct | pa.RecordBatch, None, None]:
        """Run a query, and yield the schema of its rows, then the rows in batches.

        Args:
            relation: the query.
        """
        import pyarrow as pa

        chunks: list[bytes] = []
        for response in self._execute(Plan(root=relation)):
            if response.HasField("schema"):
                yield response.schema.struct
            if response.HasField("arrow_batch"):
                batch = response.arrow_batch
                chunks.append(batch.data)
                if len(chunks) >= batch.num_chunks_in_batch:
                    with pa.ipc.open_stream(b"".join(chunks)) as reader:
                        yield from reader
                    chunks.clear()

    def _execute(self, plan: Plan) -> Iterator[ExecutePlanResponse]:
        operation_id = str(uuid.uuid4())
        request = ExecutePlanRequest(
            session_id=self.session_id,
            client_observed_server_side_session_id=self._server_session_id,
            user_context=self._user,
            client_type=CLIENT_TYPE,
            operation_id=operation_id,
            plan=plan,
        )
        chunking = ResultChunkingOptions(allow_arrow_batch_chunking=True)
        request.request_options.add(result_chunking_options=chunking)
        responses = Execution(self._stub, request, self.retries).responses()
        with self._errors(), closing(responses):
            try:
                for response in responses:
                    self._note(response)
                    if response.HasField("execution_progress"):
                        self._report(response)
                    yield response
            except (KeyboardInterrupt, GeneratorExit):
                # The server would go on with the plan, and keep all further rows in its memory.
                self._interrupt_later(operation_id)
                raise

    def _report(self, response: ExecutePlanResponse) -> None:
        progress = response.execution_progress
        stages = [
            Stage(stage.num_tasks, stage.num_completed_tasks, stage.input_bytes_read)
            for stage in progress.stages
        ]
        for handler in self.progress_handlers:
            handler(
                stages=stages,
                inflight_tasks=progress.num_inflight_tasks,
                operation_id=response.operation_id,
                done=False,
            )

    def schema(self, sql: str) -> DataType.Struct:
        """Return the schema of a query's rows, without running it.

        Args:
            sql: the query.
        """
        plan = Plan(root=query(sql))
        request = AnalyzePlanRequest(schema=AnalyzePlanRequest.Schema(plan=plan))
        return self._analyze(request).schema.schema.struct

    def version(self) -> str:
        """Return the server's version of Spark."""
        request = AnalyzePlanRequest(spark_version=AnalyzePlanRequest.SparkVersion())
        return str(self._analyze(request).spark_version.version)

    def _analyze(self, request: AnalyzePlanRequest) -> Any:
        return self._call(self._stub.AnalyzePlan, request)

    def set(self, settings: Mapping[str, str]) -> None:
        """Set several settings; those that the server does not allow stay as they are.

        Args:
            settings: the settings.
        """
        pairs = [KeyValue(key=name, value=value) for name, value in settings.items()]
        self._config(ConfigRequest.Operation(set=ConfigRequest.Set(pairs=pairs, silent=True)))

    def unset(self, names: Iterable[str]) -> None:
        """Unset several settings.

        Args:
            names: of the settings.
        """
        self._config(ConfigRequest.Operation(unset=ConfigRequest.Unset(keys=names)))

    def setting(self, name: str) -> str:
        """Return a setting; empty if it is not set.

        Args:
            name: of the setting.
        """
        option = ConfigRequest.GetOption(keys=[name])
        return self._config(ConfigRequest.Operation(get_option=option)).get(name, "")

    def settings(self) -> dict[str, str]:
        """Return all settings of the session and the server."""
        return self._config(ConfigRequest.Operation(get_all=ConfigRequest.GetAll()))

    def _config(self, operation: ConfigRequest.Operation) -> dict[str, str]:
        response = self._call(self._stub.Config, ConfigRequest(operation=operation))
        return {pair.key: pair.value for pair in response.pairs}

    def interrupt(self) -> bool:
        """Interrupt all operations of the session, and return whether any was running."""
        response = self._call(self._stub.Interrupt, _interrupt_request(None))
        return bool(response.interrupted_ids)

    def _interrupt_later(self, operation_id: str) -> None:
        """Interrupt an operation without waiting for the server.

        The garbage collector may be the caller, in a thread that must not wait for others.
        """
        send(self._stub.Interrupt, self._of_session(_interrupt_request(operation_id)))

    def clone(self, session_id: str) -> None:
        """Copy the session on the server, with its settings and temporary views.

        Args:
            session_id: of the copy.
        """
        self._call(self._stub.CloneSession, CloneSessionRequest(new_session_id=session_id))

    def end(self) -> None:
        """End the session on the server, and disconnect."""
        try:
            request = ReleaseSessionRequest(
                session_id=self.session_id, user_context=self._user, client_type=CLIENT_TYPE
            )
            with self._errors():
                retried(self.retries, lambda: self._stub.ReleaseSession(request))
        finally:
            self.disconnect()

    def disconnect(self) -> None:
        """Close the channel: a running plan fails here, but may continue on the server."""
        self._channel.close()

    def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        request = self._of_session(request)
        with self._errors():
            response = retried(self.retries, lambda: method(request))
        self._note(response)
        return response

    def _note(self, response: Any) -> None:
        # The server refuses requests for another session, as after its restart.
        self._server_session_id = response.server_side_session_id
        self.answered_at = time.monotonic()

    def _of_session(self, request: Any) -> Any:
        request.session_id = self.session_id
        request.user_context.CopyFrom(self._user)
        request.client_type = CLIENT_TYPE
        if self._server_session_id:
            request.client_observed_server_side_session_id = self._server_session_id
        return request

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            if error.code() in NO_ANSWER and rpc_status.from_call(error) is None:
                raise
            self._on_error(error)


def query(sql: str, most_rows: int | None = None) -> Relation:
    """Return a query as a message.

    Args:
        sql: the query.
        most_rows: the most rows to return; None for all.
    """
    relation = Relation(sql=SQL(query=sql))
    if most_rows is None:
        return relation
    return Relation(limit=Limit(input=relation, limit=most_rows))


def _interrupt_request(operation_id: str | None) -> InterruptRequest:
    if operation_id is None:
        return InterruptRequest(interrupt_type=InterruptRequest.INTERRUPT_TYPE_ALL)
    return InterruptRequest(
        interrupt_type=InterruptRequest.INTERRUPT_TYPE_OPERATION_ID, operation_id=operation_id
    )
