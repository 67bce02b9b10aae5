"""A catalog on a server, through PyIceberg, with the user's token."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

import requests
from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType, MetastoreCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    RESTError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import (
    TableRequirement,
    TableUpdate,
)
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dbt.adapters.iceberg_stream.catalog.backend import CatalogBackend, Condition, Dropped
from dbt.adapters.iceberg_stream.catalog.client_errors import client_errors, may_have_arrived
from dbt.adapters.iceberg_stream.catalog.client_properties import ignore_table_properties
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.probes import rows_unchanged
from dbt.adapters.iceberg_stream.catalog.rest_client import IdentityAuth, RestClient
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.storage import write_new
from dbt.adapters.iceberg_stream.catalog.tables import (
    LoadedTable,
    TableCommit,
    as_json,
    next_location,
)
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets
from dbt.adapters.iceberg_stream.errors.spark import (
    CATALOG_WITHOUT_CREDENTIALS,
    FORBIDDEN,
    describe,
)

T = TypeVar("T")
# Apache Polaris refuses it for tables and views unless an administrator allows it.
PURGE_REFUSED = r"(?i)drop.with.purge|unable to purge"
PURGE_SETTING = "DROP_WITH_PURGE_ENABLED (in Apache Polaris)"
# Attempts to send an empty commit whose connection is cut.
PROBE_ATTEMPTS = 4

logger = Logger()
REFUSALS = (BadRequestError, UnauthorizedError, ForbiddenError, AuthorizationExpiredError)


class RemoteBackend:
    """A catalog on a server or in a database, through PyIceberg; see CatalogBackend."""

    def __init__(self, settings: CatalogSettings, identity: Identity | None) -> None:
        self._settings = settings
        self._identity = identity

    @cached_property
    def catalog(self) -> Catalog:
        """PyIceberg's client. It caches answers of the server, so it serves one user only."""
        properties: dict[str, Any] = self._settings.pyiceberg()
        if self._identity is not None:
            implementation = f"{IdentityAuth.__module__}.{IdentityAuth.__name__}"
            auth = {"type": "custom", "impl": implementation}
            properties["auth"] = auth | {"custom": {"identity": self._identity}}
        with self._refusals("connect"):
            if properties["type"] == "rest":
                return RestClient(self._settings.name, **properties)
            # Not load_catalog, which adds settings from the environment.
            create_client = AVAILABLE_CATALOGS[CatalogType(properties["type"])]
            client = create_client(self._settings.name, properties)
            assert isinstance(client, MetastoreCatalog), "of a type in TYPES"
            return ignore_table_properties(client)

    def namespaces(self) -> list[str]:
        """List the namespaces, levels joined by dots."""
        namespaces = self.ask("list the namespaces", lambda c: c.list_namespaces())
        return [".".join(namespace) for namespace in namespaces]

    def namespace_exists(self, namespace: str) -> bool:
        """Return whether a namespace exists."""

        return self.ask(
            f"look for the namespace {namespace}", lambda c: c.namespace_exists(namespace)
        )

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace unless it exists."""

        def create(catalog: Catalog) -> None:
            try:
                catalog.create_namespace(namespace)
            except NamespaceAlreadyExistsError:
                return

        self.ask(f"create the namespace {namespace}", create)

    def drop_namespace(self, namespace: str) -> None:
        """Drop an empty namespace if it exists."""

        def drop(catalog: Catalog) -> None:
            try:
                catalog.drop_namespace(namespace)
            except NoSuchNamespaceError:
                return

        self.ask(f"drop the namespace {namespace}", drop)

    def relations(self, namespace: str) -> list[tuple[str, str]]:
        """List names and kinds (`table` or `view`) of a namespace; empty if it does not exist."""

        def names(catalog: Catalog) -> list[tuple[str, str]]:
            try:
                tables = [(t[-1], "table") for t in catalog.list_tables(namespace)]
                return tables + [(v[-1], "view") for v in _views(catalog, namespace)]
            except NoSuchNamespaceError:
                return []

        return self.ask(f"list the tables of {namespace}", names)

    def all_relations(self) -> list[tuple[tuple[str, str], str]]:
        """List names and kinds of all namespaces, those within other namespaces among them.

        The levels of a namespace are joined as in the paths of requests, because a level may
        contain a dot.
        """

        def names(catalog: Catalog) -> list[tuple[tuple[str, str], str]]:
            listed: list[tuple[tuple[str, str], str]] = []
            missing: set[tuple[str, ...]] = set()
            for levels in _all_namespaces(catalog):
                namespace = _joined(catalog, levels)
                try:
                    tables, views = catalog.list_tables(levels), _views(catalog, levels)
                except NoSuchNamespaceError:
                    missing.add(levels)
                    continue
                listed += [((namespace, table[-1]), "table") for table in tables]
                listed += [((namespace, view[-1]), "view") for view in views]
            # The others were dropped meanwhile.
            if missing and (unknown := missing.intersection(_all_namespaces(catalog))):
                raise CatalogError(
                    f"The catalog `{self._settings.name}` lists the namespace "
                    f"{min(unknown)}, but not its tables."
                )
            return listed

        return self.ask("list all tables", names)

    def neighbors(self) -> list[tuple[str, CatalogBackend]]:
        """Return none: other catalogs of the server are unknown."""
        return []

    def metadata(self, namespace: str, name: str, history: bool = True) -> Metadata | None:
        """Return the current metadata of a table or view; None if there is neither."""
        current = self._current(namespace, name, history)
        return current and current[1]

    def _current(self, namespace: str, name: str, history: bool) -> tuple[str, Metadata] | None:
        """Return where the current metadata are, empty for a view, and the metadata."""

        def load(catalog: Catalog) -> tuple[str, Metadata] | None:
            try:
                table = _load_table(catalog, (namespace, name), history)
                return table.metadata_location, as_json(table.metadata)
            except NoSuchTableError:
                pass
            try:
                return "", as_json(catalog.load_view((namespace, name)).metadata)
            except (NoSuchViewError, NotImplementedError):
                return None

        return self.ask(f"read {namespace}.{name}", load)

    def load(self, namespace: str, name: str, history: bool = True) -> LoadedTable | None:
        """Load the current version of a table; None if it does not exist."""

        def load(catalog: Catalog) -> LoadedTable | None:
            try:
                table = _load_table(catalog, (namespace, name), history)
            except NoSuchTableError:
                return None
            metadata, location = as_json(table.metadata), table.metadata_location
            return LoadedTable((namespace, name), metadata, location, table.io, table)

        return self.ask(f"read {namespace}.{name}", load)

    def stage(
        self,
        namespace: str,
        name: str,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
    ) -> LoadedTable:
        """Stage a new table, which its first commit creates."""

        def stage(catalog: Catalog) -> LoadedTable:
            try:
                transaction = catalog.create_table_transaction(
                    (namespace, name), schema, partition_spec=spec, properties=dict(properties)
                )
            except TableAlreadyExistsError as error:
                raise CommitConflict(f"{namespace}.{name} already exists.") from error
            table = transaction._table
            metadata = as_json(table.metadata)
            return LoadedTable(
                (namespace, name), metadata, "", table.io, table, transaction._updates
            )

        return self.ask(f"create {namespace}.{name}", stage)

    def commit(
        self,
        base: LoadedTable,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
    ) -> None:
        """Commit updates to one table, or create a staged one."""
        table = base.table
        assert table is not None

        def send(catalog: Catalog) -> None:
            if isinstance(catalog, RestClient):
                catalog.commit_one(TableCommit(base, tuple(requirements), tuple(updates)))
            else:
                catalog.commit_table(table, tuple(requirements), (*base.creation, *updates))

        self._commit(".".join(base.name), send)

    def commit_all(self, commits: Sequence[TableCommit]) -> None:
        """Commit to several tables atomically."""

        def send(catalog: Catalog) -> None:
            assert isinstance(catalog, RestClient), "only REST catalogs have this capability"
            catalog.commit_tables(commits)

        self._commit(", ".join(".".join(commit.base.name) for commit in commits), send)

    def _commit(self, names: str, send: Callable[[Catalog], None]) -> None:
        def commit(catalog: Catalog) -> None:
            try:
                with _unknown_outcomes(f"the commit to {names}"):
                    send(catalog)
            except (CommitFailedException, TooManyRequestsError) as error:
                raise CommitConflict(
                    f"The catalog rejected the commit to {names}: {_reason(error)}\n"
                    "Another writer may have been faster. Run the command again."
                ) from error

        self.ask(f"commit to {names}", commit)

    def stage_version(self, namespace: str, name: str, origin: LoadedTable) -> LoadedTable:
        """Create a table with the metadata of another one: a transaction cannot create tables."""
        location = next_location(origin)
        write_new(origin.io, location, json.dumps(origin.metadata).encode())
        self.register(namespace, name, location)
        table = self.load(namespace, name)
        assert table is not None, "it was just created"
        return table

    def register(self, namespace: str, name: str, location: str) -> None:
        """Create a table from a metadata file."""

        def register(catalog: Catalog) -> None:
            try:
                with _unknown_outcomes(f"the creation of {namespace}.{name}"):
                    catalog.register_table((namespace, name), location)
            except TableAlreadyExistsError as error:
                raise CommitConflict(f"{namespace}.{name} already exists.") from error

        self.ask(f"create {namespace}.{name}", register)

    def unregister(
        self, namespace: str, name: str, only: Condition | None = None
    ) -> Dropped | None:
        """Drop a table or view, but keep its files; return what was dropped."""
        dropped, kind = Dropped("", None), None
        if only is not None:
            current = self._current(namespace, name, history=False)
            if current is None or not only(current[1]):
                return None
            dropped, kind = Dropped(*current), "view" if "versions" in current[1] else "table"

        def drop(catalog: Catalog) -> bool:
            if kind != "view":
                try:
                    catalog.drop_table((namespace, name))
                    return True
                except NoSuchTableError:
                    pass
                except BadRequestError:
                    # Nessie's answer if the name is a view's.
                    if kind == "table" or not _drop_view(catalog, (namespace, name)):
                        raise
                    return True
            return kind != "table" and _drop_view(catalog, (namespace, name))

        return dropped if self.ask(f"drop {namespace}.{name}", drop) else None

    def put_view(self, namespace: str, name: str, version: Metadata) -> None:
        """Create a view, or replace the one of this name."""

        def put(catalog: Catalog) -> None:
            assert isinstance(catalog, RestClient), "only REST catalogs have views"
            catalog.put_view((namespace, name), version)

        self.ask(f"create the view {namespace}.{name}", put)

    def set_view_properties(self, namespace: str, name: str, properties: Mapping[str, str]) -> None:
        """Set properties of a view."""

        def change(catalog: Catalog) -> None:
            assert isinstance(catalog, RestClient), "only REST catalogs have views"
            try:
                catalog.set_view_properties((namespace, name), properties)
            except NoSuchViewError as error:
                raise CommitConflict(f"{namespace}.{name} is not a view any more") from error

        self.ask(f"change properties of the view {namespace}.{name}", change)

    def check_write(self, namespace: str, name: str, rows_only: bool = False) -> None:
        """Check that the user may write to a table; a missing table passes."""

        def commit_nothing(catalog: Catalog) -> None:
            assert isinstance(catalog, RestClient), "only REST catalogs have rights"
            try:
                if rows_only:
                    table = _load_table(catalog, (namespace, name), history=False)
                    catalog.commit_table(table, *rows_unchanged(table))
                else:
                    catalog.commit_nothing((namespace, name))
            except (UnauthorizedError, AuthorizationExpiredError):
                raise
            except (NoSuchTableError, CommitFailedException, RESTError) as error:
                if _forbidden(error):
                    raise
                return  # the write itself reports other errors better

        def probe(catalog: Catalog) -> None:
            # The commit changes nothing, so it may be sent again when its connection is cut.
            for attempt in Retrying(
                retry=retry_if_exception_type(requests.ConnectionError),
                stop=stop_after_attempt(PROBE_ATTEMPTS),
                wait=wait_random_exponential(multiplier=0.2, max=2),
                reraise=True,
            ):
                with attempt:
                    commit_nothing(catalog)

        if self._settings.type == "rest":
            self.ask(f"write to {namespace}.{name}", probe)

    def capabilities(self) -> dict[str, bool]:
        """Return optional capabilities; empty for other catalogs than REST."""
        catalog = self.catalog
        return catalog.capabilities() if isinstance(catalog, RestClient) else {}

    def close(self) -> None:
        """Close PyIceberg's client, if it is open."""
        if "catalog" in self.__dict__:
            self.catalog.close()

    def ask(self, operation: str, question: Callable[[Catalog], T]) -> T:
        """Call PyIceberg's client; call it again with a new token if the first is refused."""
        catalog = self.catalog
        with self._refusals(operation):
            token = self._identity.token() if self._identity else None
            try:
                return question(catalog)
            except (UnauthorizedError, AuthorizationExpiredError):
                if self._identity is None or token is None or not self._identity.renew(token):
                    raise
                return question(catalog)

    def _for_principal(self) -> str:
        return f" for {self._identity.principal}" if self._identity else ""

    @contextmanager
    def _refusals(self, operation: str) -> Iterator[None]:
        """Convert errors of the catalog and of the connection to CatalogError."""
        catalog = f"The catalog `{self._settings.name}` at {self._settings.uri}"
        try:
            yield
        except IdentityError as error:
            raise CatalogError(f"{catalog} cannot {operation} without a token. {error}") from error
        except (UnauthorizedError, AuthorizationExpiredError) as error:
            raise CatalogError(
                f"{catalog} does not accept the token{self._for_principal()} to {operation}: "
                f"{_reason(error)}\n"
                "The token may have expired or be for another catalog. Get a new one."
            ) from error
        except BadRequestError as error:
            raise CatalogError(
                f"{catalog} cannot {operation}{self._for_principal()}: {_reason(error)}"
            ) from error
        except NoSuchNamespaceError as error:
            raise CatalogError(
                f"{catalog} cannot {operation}: the schema does not exist. Create it first "
                "(`create schema …`)."
            ) from error
        except NotImplementedError as error:
            raise CatalogError(f"{catalog} is not able to {operation}: {_reason(error)}") from error
        except RESTError as error:
            if re.search(CATALOG_WITHOUT_CREDENTIALS, str(error)):
                raise CatalogError(
                    f"{catalog} cannot {operation}{self._for_principal()}: "
                    f"{describe(_reason(error))}"
                ) from error
            if re.search(PURGE_REFUSED, str(error)):
                raise CatalogError(
                    f"{catalog} refused to {operation}{self._for_principal()}: {_reason(error)}\n"
                    "In this catalog, dropping a table also deletes its files, and its settings do "
                    f"not allow that. Ask its administrator to enable {PURGE_SETTING}."
                ) from error
            if _forbidden(error):
                raise CatalogError(
                    f"{catalog} refused to {operation}{self._for_principal()}: {_reason(error)}\n"
                    f"Ask the catalog's administrator for the privilege to {operation}."
                ) from error
            raise CatalogError(
                f"{catalog} failed to {operation}: {_reason(error)}\n"
                "Run the command again when the catalog works. If it fails again, send this "
                "message to the catalog's administrator."
            ) from error
        except requests.exceptions.SSLError as error:
            raise CatalogError(
                f"The TLS connection to {catalog} failed: {_reason(error)}\n"
                "Check the `uri`. If your company signs its own certificates, set `ssl.cabundle` "
                "in `catalog_properties` to the file of its certificate authority, and add "
                "-Djavax.net.ssl.trustStore=… to `spark.driver.extraJavaOptions` in `spark_conf`."
            ) from error
        except requests.RequestException as error:
            raise CatalogError(
                f"{catalog} does not answer: {_reason(error)}\n"
                "Check the `uri` and that the catalog is running."
            ) from error
        except client_errors() as error:
            raise CatalogError(f"{catalog} failed to {operation}: {_reason(error)}") from error


def _load_table(catalog: Catalog, name: tuple[str, str], history: bool) -> Table:
    if not isinstance(catalog, RestClient):
        return catalog.load_table(name)
    if not history:
        # Iceberg's server (1.12) fails to leave out a snapshot that has statistics.
        with suppress(BadRequestError):
            return catalog.load_snapshots(name, "refs")
    return catalog.load_snapshots(name, "all")


def _all_namespaces(catalog: Catalog) -> Iterator[tuple[str, ...]]:
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parent = pending.pop()
        try:
            inner = catalog.list_namespaces(parent)
        except NoSuchNamespaceError:
            continue  # dropped meanwhile
        # Servers without namespaces within namespaces may list the outermost ones again.
        children = [n for n in inner if len(n) == len(parent) + 1 and n[:-1] == parent]
        yield from children
        pending += children


def _joined(catalog: Catalog, levels: tuple[str, ...]) -> str:
    return (catalog._namespace_separator if isinstance(catalog, RestClient) else ".").join(levels)


def _views(catalog: Catalog, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
    try:
        return list(catalog.list_views(namespace))
    except NotImplementedError:
        return []  # a catalog without views


def _drop_view(catalog: Catalog, name: tuple[str, str]) -> bool:
    """Drop a view; return whether there was one."""
    try:
        catalog.drop_view(name)
    except (NoSuchViewError, NotImplementedError):
        return False
    return True


@contextmanager
def _unknown_outcomes(change: str) -> Iterator[None]:
    """Raise CommitStateUnknown for errors after which the catalog may have made a change."""
    try:
        yield
    except (TooManyRequestsError, requests.exceptions.ConnectTimeout):
        raise
    except RESTError as error:
        # An error that is not a refusal may have occurred after the change.
        if isinstance(error, REFUSALS) or _forbidden(error):
            raise
        raise _unknown(change, error) from error
    except (requests.RequestException, ValueError) as error:
        raise _unknown(change, error) from error
    except client_errors() as error:
        if may_have_arrived(error):
            raise _unknown(change, error) from error
        raise


def _unknown(change: str, error: Exception) -> CommitStateUnknown:
    return CommitStateUnknown(f"The catalog did not confirm {change}: {_reason(error)}")


def _forbidden(error: Exception) -> bool:
    # Nessie answers refusals as server errors, so their text decides.
    return isinstance(error, ForbiddenError) or re.search(FORBIDDEN, str(error)) is not None


def _reason(error: Exception) -> str:
    return without_secrets(str(error).strip()) or type(error).__name__
