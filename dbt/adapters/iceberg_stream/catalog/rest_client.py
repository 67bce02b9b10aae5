"""PyIceberg's REST client, with time-outs, retries and its user's token."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.catalog.rest import (
    VIEW_ENDPOINTS_SUPPORTED,
    Endpoints,
    IdentifierKind,
    RestCatalog,
    TableResponse,
)
from pyiceberg.catalog.rest.auth import AUTH_MANAGER, AuthManager
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    NoSuchViewError,
)
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Namespace, StagedTable, Table, TableIdentifier
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.utils.properties import property_as_bool
from requests import HTTPError, PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from dbt.adapters.iceberg_stream.catalog.backend import COMMITS_TOGETHER
from dbt.adapters.iceberg_stream.catalog.client_properties import from_server, is_own
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict
from dbt.adapters.iceberg_stream.catalog.idempotency import send_once, stores_responses
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.transport import (
    refuse_other_origin,
    require_private,
)
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.settings import ALLOW_PLAINTEXT, SHARED, signs_remotely
from dbt.adapters.iceberg_stream.catalog.storage import catalog_io
from dbt.adapters.iceberg_stream.catalog.tables import TableCommit
from dbt.adapters.iceberg_stream.catalog.views import current_schema, current_version

VIEWS = "/v1/{prefix}/namespaces/{namespace}/views"
# Optional capabilities by their endpoint (REST specification, `GET /v1/config`).
CAPABILITIES = {
    "views": f"POST {VIEWS}",
    "replacing views": f"POST {VIEWS}/{{view}}",
    COMMITS_TOGETHER: "POST /v1/{prefix}/transactions/commit",
    "planning of scans": "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan",
}
# Named like the property for views of PyIceberg and Java, `view-endpoints-supported`.
TRANSACTION_ENDPOINT_SUPPORTED = "transaction-endpoint-supported"

# Seconds to connect, and to wait for a response.
TIMEOUT = (10.0, 60.0)
# HTTP status codes of a server that will recover.
TRANSIENT = (429, 502, 503, 504)
# With pauses of 0, 1, 2, 4, 8 and 8 s a catalog may be unavailable for 20 s.
RETRIES = 6

# Below this level it would log every retry to the terminal.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


class IdentityAuth(AuthManager):
    """Sets the Authorization header of each request, with a valid token."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def auth_header(self) -> str:
        """Return the header's value."""
        return f"Bearer {self._identity.token().value}"


class RestClient(RestCatalog):
    """A REST catalog, as one user.

    Reads are retried while the server is unavailable; a write is sent again only if it never
    arrived, or if the server repeats its response (`idempotency`). The first request is not
    retried, because the `uri` may be wrong.
    """

    _stores_responses = False

    def _fetch_config(self) -> None:
        own = {name: value for name, value in self.properties.items() if is_own(name)}
        super()._fetch_config()
        self.properties = from_server(self.properties) | own

    def _response_to_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> Table:
        # Optional in the protocol, because staged tables have none.
        if table_response.metadata_location is None:
            raise CatalogError(
                f"The catalog does not say where the metadata file of {'.'.join(identifier_tuple)} "
                "is (`metadata-location`), so its versions cannot be told apart. Tell its "
                "administrator: the protocol asks for it, for each table that exists."
            )
        return Table(
            identifier_tuple,
            table_response.metadata,
            table_response.metadata_location,
            self._io(table_response),
            self,
            table_response.config,
        )

    def _response_to_staged_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> StagedTable:
        location: Any = table_response.metadata_location
        io = self._io(table_response)
        return StagedTable(identifier_tuple, table_response.metadata, location, io, self)

    def _io(self, response: TableResponse) -> FileIO:
        """Return the FileIO of a table, by the catalog's properties and what it vends."""
        location = response.metadata_location or response.metadata.location
        vended = self._resolve_storage_credentials(response.storage_credentials, location)
        properties = {**self.properties, **from_server({**response.config, **vended})}
        if SHARED in properties and signs_remotely(properties):
            raise CatalogError(
                f"The catalog signs requests to the storage for {response.metadata.location} "
                "(`s3.remote-signing-enabled`). Iceberg caches signatures for all users of this "
                "server, so it refuses the table. Let the catalog vend credentials instead."
            )
        if self._auth_manager:
            properties[AUTH_MANAGER] = self._auth_manager
        return catalog_io(properties, location)

    def _encode_namespace_path(self, namespace: tuple[str, ...]) -> str:
        return self._require_segment(super()._encode_namespace_path(namespace))

    def _split_identifier_for_path(
        self,
        identifier: str | tuple[str, ...] | TableIdentifier,
        kind: IdentifierKind = IdentifierKind.TABLE,
    ) -> dict[str, Any]:
        path: dict[str, Any] = super()._split_identifier_for_path(identifier, kind)
        self._require_segment(path[kind.value])
        return path

    @staticmethod
    def _require_segment(quoted: str) -> str:
        """Return a segment of a path, unless the path with it is another one."""
        if quoted in ("", ".", ".."):
            raise CatalogError(f"`{quoted}` cannot be the name of a table, a view or a schema.")
        return quoted

    def capabilities(self) -> dict[str, bool]:
        """Return the support by capability, as the catalog and the profile report it."""
        endpoints = {str(endpoint) for endpoint in self._supported_endpoints}
        if property_as_bool(self.properties, VIEW_ENDPOINTS_SUPPORTED, False):
            endpoints |= {CAPABILITIES["views"], CAPABILITIES["replacing views"]}
        if property_as_bool(self.properties, TRANSACTION_ENDPOINT_SUPPORTED, False):
            endpoints.add(CAPABILITIES[COMMITS_TOGETHER])
        return {name: endpoint in endpoints for name, endpoint in CAPABILITIES.items()}

    def load_snapshots(self, identifier: tuple[str, str], snapshots: str) -> Table:
        """Load a table, whatever the property `snapshot-loading-mode` says.

        Args:
            identifier: namespace and identifier.
            snapshots: `all`, or `refs` for those that a branch or tag references. A catalog may
                return all nevertheless (REST specification, `loadTable`, `snapshots`).

        Raises:
            NoSuchTableError: the table does not exist.
        """
        path = self._split_identifier_for_path(identifier)
        response = self._session.get(
            self.url(Endpoints.load_table, prefixed=True, **path), params={"snapshots": snapshots}
        )
        try:
            response.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, {404: NoSuchTableError})
        parsed = TableResponse.model_validate_json(response.text)
        return self._response_to_table(self.identifier_to_tuple(identifier), parsed)

    def commit_nothing(self, identifier: tuple[str, str]) -> None:
        """Post an empty commit, which a catalog accepts only from those who may write to the table.

        Args:
            identifier: namespace and identifier.

        Raises:
            NoSuchTableError: the table does not exist.
            RESTError: the catalog refuses, or does not accept an empty commit.
        """
        url, body = self._commit_request(identifier, (), ())
        response = self._session.post(url, data=body)
        try:
            response.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, {404: NoSuchTableError})

    def commit_one(self, commit: TableCommit) -> None:
        """Commit to one table. The response, which has all its snapshots, is not parsed.

        Args:
            commit: the commit.

        Raises:
            CommitFailedException: the table changed since it was loaded; nothing was committed.
            RESTError: the catalog refused the commit, or its state is unknown.
        """
        url, body = self._commit_request(commit.base.name, commit.requirements, commit.all_updates)
        response = self._post_commit(url, body)
        try:
            response.raise_for_status()
        except HTTPError as error:
            errors: dict[int, type[Exception]] = {409: CommitFailedException}
            errors |= dict.fromkeys((500, 502, 504), CommitStateUnknownException)
            _handle_non_200_response(error, errors)

    def commit_tables(self, commits: Sequence[TableCommit]) -> None:
        """Commit to several tables atomically (REST specification, `commitTransaction`).

        Args:
            commits: one commit per table.

        Raises:
            NotImplementedError: the catalog does not have the endpoint.
            CommitFailedException: a table changed since it was loaded, or was dropped; nothing was
                committed.
            RESTError: the catalog refused the commit, or its state is unknown.
        """
        changes = [
            CommitTableRequest(
                identifier=TableIdentifier(namespace=Namespace(namespace), name=name),
                requirements=commit.requirements,
                updates=commit.all_updates,
            )
            for commit in commits
            for *namespace, name in [commit.base.name]
        ]
        body = {"table-changes": [json.loads(change.model_dump_json()) for change in changes]}
        response = self._post_commit(self.url("transactions/commit"), json.dumps(body).encode())
        try:
            response.raise_for_status()
        except HTTPError as error:
            if response.status_code == 404 and "NoSuchTable" not in response.text:
                raise NotImplementedError(
                    f"the server has no {CAPABILITIES[COMMITS_TOGETHER]}. Remove "
                    f"`{TRANSACTION_ENDPOINT_SUPPORTED}` from `catalog_properties`: the tables are "
                    "then committed one after the other."
                ) from error
            errors: dict[int, type[Exception]] = dict.fromkeys((404, 409), CommitFailedException)
            errors |= dict.fromkeys((500, 502, 504), CommitStateUnknownException)
            _handle_non_200_response(error, errors)

    def _commit_request(
        self,
        identifier: tuple[str, str],
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> tuple[str, bytes]:
        """Return the address and the body of a commit to one table."""
        namespace, name = identifier
        request = CommitTableRequest(
            identifier=TableIdentifier(namespace=Namespace([namespace]), name=name),
            requirements=requirements,
            updates=updates,
        )
        path = self._split_identifier_for_path(identifier)
        url = self.url(Endpoints.update_table, prefixed=True, **path)
        return url, request.model_dump_json().encode()

    def _post_commit(self, url: str, body: bytes) -> Response:
        if self._stores_responses:
            return send_once(lambda headers: self._session.post(url, data=body, headers=headers))
        return self._session.post(url, data=body)

    def put_view(self, identifier: tuple[str, str], version: Metadata) -> None:
        """Create a view, or replace the one of this name (REST specification, `replaceView`).

        Args:
            identifier: namespace and identifier.
            version: metadata whose current version, schema and properties the view gets.

        Raises:
            CommitConflict: another writer creates, changes or drops it, or a table has the name.
            RESTError: the catalog refuses it.
        """
        new = {**current_version(version), "version-id": 1, "timestamp-ms": (now := _now())}
        # Servers add no version that equals an older one.
        new["summary"] = {**new.get("summary", {}), "iceberg-stream.created-ms": str(now)}
        schema, properties = current_schema(version), dict(version.get("properties") or {})
        path = self._split_identifier_for_path(identifier, IdentifierKind.VIEW)
        try:
            view = self.load_view(identifier)
        except NoSuchViewError:
            url = self.url(Endpoints.create_view, namespace=path["namespace"])
            body = {"name": path["view"], "schema": schema, "properties": properties}
            self._post_view(identifier, url, {**body, "view-version": {**new, "schema-id": 0}})
            return
        versions = [v.version_id for v in view.metadata.versions]
        # A server counts no schema as added that the view has already.
        same = [s.schema_id for s in view.metadata.schemas if _fields(s) == schema["fields"]]
        new |= {"version-id": max(versions) + 1, "schema-id": same[-1] if same else -1}
        updates: list[dict[str, Any]] = [] if same else [{"action": "add-schema", "schema": schema}]
        updates += [
            {"action": "add-view-version", "view-version": new},
            {"action": "set-current-view-version", "view-version-id": -1},
            {"action": "set-properties", "updates": properties},
        ]
        requirement = {"type": "assert-view-uuid", "uuid": view.metadata.view_uuid}
        body = {"requirements": [requirement], "updates": updates}
        self._post_view(identifier, self.url(Endpoints.load_view, prefixed=True, **path), body)

    def set_view_properties(
        self, identifier: tuple[str, str], properties: Mapping[str, str]
    ) -> None:
        """Set properties of a view (REST specification, `replaceView`).

        Args:
            identifier: namespace and identifier.
            properties: the properties.

        Raises:
            RESTError: the catalog refuses it.
        """
        view = self.load_view(identifier)
        path = self._split_identifier_for_path(identifier, IdentifierKind.VIEW)
        requirement = {"type": "assert-view-uuid", "uuid": view.metadata.view_uuid}
        updates = [{"action": "set-properties", "updates": dict(properties)}]
        body = {"requirements": [requirement], "updates": updates}
        self._post_view(identifier, self.url(Endpoints.load_view, prefixed=True, **path), body)

    def _post_view(self, identifier: tuple[str, str], url: str, body: dict[str, Any]) -> None:
        response = self._session.post(url, data=json.dumps(body).encode())
        try:
            response.raise_for_status()
        except HTTPError as error:
            if response.status_code == 409:
                raise CommitConflict(
                    f"another writer has created, changed or dropped {'.'.join(identifier)}"
                ) from error
            _handle_non_200_response(error, {404: NoSuchViewError})

    def _create_session(self) -> Session:
        session = super()._create_session()
        connected = hasattr(self, "_supported_endpoints")
        adapter = _TimeoutAdapter(
            self.properties.get("ssl.cabundle"),
            ALLOW_PLAINTEXT in self.properties,
            max_retries=Retry(
                total=RETRIES,
                connect=RETRIES if connected else 0,
                read=1 if connected else 0,
                other=0,  # e.g. an invalid certificate
                status_forcelist=TRANSIENT,
                allowed_methods=("GET", "HEAD"),
                backoff_factor=0.5,
                backoff_max=8,
                respect_retry_after_header=False,  # it may say hours
                # The caller explains the last response better.
                raise_on_status=False,
            ),
        )
        session.hooks["response"] += [refuse_other_origin, self._on_response]
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        return session

    def _on_response(self, response: Response, **_: Any) -> None:
        # PyIceberg does not keep the configuration's other keys.
        self._stores_responses = self._stores_responses or stores_responses(response)


def _fields(schema: Schema) -> Any:
    return json.loads(schema.model_dump_json())["fields"]


def _now() -> int:
    return int(time.time() * 1000)


def set_last_column_ids(request: PreparedRequest) -> None:
    """Set `last-column-id` of each new schema in a commit.

    The REST specification has deprecated it and PyIceberg omits it, but Nessie requires it.
    """
    body = request.body
    if request.method != "POST" or not isinstance(body, bytes) or b'"add-schema"' not in body:
        return
    commit = json.loads(body)
    for change in commit.get("table-changes", [commit]):
        for update in change.get("updates", []):
            if update.get("action") == "add-schema":
                last = Schema.model_validate(update["schema"]).highest_field_id
                update.setdefault("last-column-id", last)
    request.prepare_body(json.dumps(commit).encode(), None)


class _TimeoutAdapter(HTTPAdapter):
    """Sets the time-outs and the CA bundle of each request, and sends no secret in plain text.

    Requests accepts time-outs per request only, and prefers the environment's CA bundle to that of
    a session.
    """

    def __init__(self, bundle: str | None, allow_plaintext: bool, max_retries: Retry) -> None:
        super().__init__(max_retries=max_retries)
        self._bundle = bundle
        self._allow_plaintext = allow_plaintext

    def send(self, request: PreparedRequest, **kwargs: Any) -> Response:  # type: ignore[override]
        """Send a request with the time-outs and the CA bundle."""
        if not self._allow_plaintext:
            require_private(request)
        set_last_column_ids(request)
        kwargs["timeout"] = kwargs.get("timeout") or TIMEOUT
        kwargs["verify"] = self._bundle or kwargs.get("verify", True)
        return super().send(request, **kwargs)
