"""PyIceberg's REST client, with bounded patience and its user's token."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from pyiceberg.catalog.rest import (
    VIEW_ENDPOINTS_SUPPORTED,
    Endpoints,
    RestCatalog,
    TableResponse,
)
from pyiceberg.catalog.rest.auth import AuthManager
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Namespace, Table, TableIdentifier
from pyiceberg.utils.properties import property_as_bool
from requests import HTTPError, PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from dbt.adapters.iceberg_stream.catalog.backend import COMMITS_TOGETHER
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.tables import TableCommit

VIEWS = "/v1/{prefix}/namespaces/{namespace}/views"
# What not every catalog has, by its endpoint (REST specification, `GET /v1/config`).
CAPABILITIES = {
    "views": f"POST {VIEWS}",
    "replacing views": f"POST {VIEWS}/{{view}}",
    COMMITS_TOGETHER: "POST /v1/{prefix}/transactions/commit",
    "planning of scans": "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan",
}
# The same as PyIceberg's and Java's property for views.
TRANSACTION_ENDPOINT_SUPPORTED = "transaction-endpoint-supported"

# Seconds to connect, and until a silent server is given up.
TIMEOUT = (10.0, 60.0)
# Answers of a server that will be well again.
TRANSIENT = (429, 502, 503, 504)
# With pauses of 0, 1, 2, 4, 8 and 8 s a catalog may be away for 20 s.
RETRIES = 6

# Otherwise it tells the terminal of every repetition.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


class IdentityAuth(AuthManager):
    """The Authorization header of each request: always the token that is good now."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def auth_header(self) -> str:
        return f"Bearer {self._identity.token().value}"


class RestClient(RestCatalog):
    """The catalog of one user.

    Reads are repeated while the server is away for a moment; a write is sent again only if it
    never arrived. Who does not answer at the first contact is not waited for: the `uri` may be
    wrong.
    """

    def capabilities(self) -> dict[str, bool]:
        """What the catalog says of itself.

        One that says nothing has none of it, but what the profile says of it.
        """
        endpoints = {str(endpoint) for endpoint in self._supported_endpoints}
        if property_as_bool(self.properties, VIEW_ENDPOINTS_SUPPORTED, False):
            endpoints |= {CAPABILITIES["views"], CAPABILITIES["replacing views"]}
        if property_as_bool(self.properties, TRANSACTION_ENDPOINT_SUPPORTED, False):
            endpoints.add(CAPABILITIES[COMMITS_TOGETHER])
        return {name: endpoint in endpoints for name, endpoint in CAPABILITIES.items()}

    def load_head(self, identifier: tuple[str, str]) -> Table:
        """A table without the snapshots that no branch or tag points to, if the catalog can leave
        them out (REST specification, `loadTable`, `snapshots`).

        Raises:
            NoSuchTableError: there is none.
        """
        place = self._split_identifier_for_path(identifier)
        response = self._session.get(
            self.url(Endpoints.load_table, prefixed=True, **place), params={"snapshots": "refs"}
        )
        try:
            response.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, {404: NoSuchTableError})
        parsed = TableResponse.model_validate_json(response.text)
        return self._response_to_table(self.identifier_to_tuple(identifier), parsed)

    def commit_one(self, commit: TableCommit) -> None:
        """Change a table. The answer, which has all its snapshots, is not looked at.

        Raises:
            CommitFailedException: it is not what it was; nothing was changed.
            RESTError: it was refused, or what became of it is not known.
        """
        namespace, name = commit.base.name
        request = CommitTableRequest(
            identifier=TableIdentifier(namespace=Namespace([namespace]), name=name),
            requirements=commit.requirements,
            updates=commit.all_updates,
        )
        place = self._split_identifier_for_path(commit.base.name)
        response = self._session.post(
            self.url(Endpoints.update_table, prefixed=True, **place),
            data=request.model_dump_json().encode(),
        )
        try:
            response.raise_for_status()
        except HTTPError as error:
            answers: dict[int, type[Exception]] = {409: CommitFailedException}
            answers |= dict.fromkeys((500, 502, 504), CommitStateUnknownException)
            _handle_non_200_response(error, answers)

    def commit_tables(self, commits: Sequence[TableCommit]) -> None:
        """Change several tables in one step (REST specification, `commitTransaction`).

        Raises:
            NotImplementedError: the catalog has nothing of the kind.
            CommitFailedException: a table is not what it was, or is gone; nothing was changed.
            RESTError: it was refused, or what became of it is not known.
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
        response = self._session.post(
            self.url("transactions/commit"), data=json.dumps(body).encode()
        )
        try:
            response.raise_for_status()
        except HTTPError as error:
            if response.status_code == 404 and "NoSuchTable" not in response.text:
                raise NotImplementedError(
                    f"it has no {CAPABILITIES[COMMITS_TOGETHER]}. Take "
                    f"`{TRANSACTION_ENDPOINT_SUPPORTED}` out of `catalog_properties`."
                ) from error
            answers: dict[int, type[Exception]] = dict.fromkeys((404, 409), CommitFailedException)
            answers |= dict.fromkeys((500, 502, 504), CommitStateUnknownException)
            _handle_non_200_response(error, answers)

    def _create_session(self) -> Session:
        session = super()._create_session()
        known = hasattr(self, "_supported_endpoints")
        adapter = _PatientAdapter(
            self.properties.get("ssl.cabundle"),
            max_retries=Retry(
                total=RETRIES,
                connect=RETRIES if known else 0,
                read=1 if known else 0,
                other=0,  # a certificate does not become better
                status_forcelist=TRANSIENT,
                allowed_methods=("GET", "HEAD"),
                backoff_factor=0.5,
                backoff_max=8,
                respect_retry_after_header=False,  # it may name hours
                # The last answer is better explained by the caller.
                raise_on_status=False,
            ),
        )
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        return session


def tell_last_column_ids(request: PreparedRequest) -> None:
    """Give each new schema of a commit its `last-column-id`.

    The REST specification has deprecated it and PyIceberg leaves it out, but Nessie asks for it.
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


class _PatientAdapter(HTTPAdapter):
    """What Requests takes for each request only: time-outs, and whom to trust.

    Of a session's own `verify` it thinks less than of the environment.
    """

    def __init__(self, bundle: str | None, max_retries: Retry) -> None:
        super().__init__(max_retries=max_retries)
        self._bundle = bundle

    def send(self, request: PreparedRequest, **kwargs: Any) -> Response:  # type: ignore[override]
        tell_last_column_ids(request)
        kwargs["timeout"] = kwargs.get("timeout") or TIMEOUT
        kwargs["verify"] = self._bundle or kwargs.get("verify", True)
        return super().send(request, **kwargs)
