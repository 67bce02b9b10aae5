"""Read schemas from a schema registry that has Confluent's interface.

Confluent's own client needs four more packages, a cluster id with each bearer token, and has no
timeout by default. The options have its names, after `schema.registry.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import quote

import requests
from requests.utils import get_auth_from_url
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from dbt.adapters.iceberg_stream.catalog.identity.transport import refuse_other_origin
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets
from dbt.adapters.iceberg_stream.stream.errors import StreamError

PREFIX = "schema.registry."
# The client's headers by the options that they are set from.
HEADERS = {
    "bearer.auth.token": ("Authorization", "Bearer {}"),
    "bearer.auth.logical.cluster": ("target-sr-cluster", "{}"),
    "bearer.auth.identity.pool.id": ("Confluent-Identity-Pool-Id", "{}"),
}
OPTIONS = {"url", "basic.auth.user.info", *HEADERS} | {
    f"ssl.{name}.location" for name in ("ca", "certificate", "key")
}
# How long a registry that does not answer is asked again.
RETRY_SECONDS = 30.0
TIMEOUT_SECONDS = 10.0
MISSING = 404
BUSY = (408, 429, 500, 502, 503, 504)


class _NoAnswer(Exception):
    """The registry does not answer, or cannot answer now."""


class Reference(NamedTuple):
    """A schema that another one refers to.

    Attributes:
        name: by which it is referred to: of a type in Avro, of a file in Protobuf.
        text: the schema.
    """

    name: str
    text: str


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of the registry. Its text never changes.

    Attributes:
        id: its number, which messages carry.
        text: the schema.
        kind: AVRO, JSON or PROTOBUF.
        references: the schemas that define types it uses, in the order of their use.
    """

    id: int
    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()


@dataclass
class SchemaRegistry:
    """A client of a schema registry, which connects on first use.

    Attributes:
        options: Confluent's options of the client, without PREFIX.

    Raises:
        StreamError: an option is wrong.
    """

    options: Mapping[str, str] = field(repr=False)
    _versions: dict[tuple[str, int], RegisteredSchema] = field(
        default_factory=dict, init=False, repr=False
    )
    _ids: dict[int, RegisteredSchema] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.options) - OPTIONS):
            raise StreamError(
                f"The schema registry's client has no option {PREFIX}{unknown[0]}. It has: "
                f"{', '.join(PREFIX + name for name in sorted(OPTIONS))}."
            )
        if "ssl.key.location" in self.options and "ssl.certificate.location" not in self.options:
            raise StreamError(
                f"`{PREFIX}ssl.key.location` needs `{PREFIX}ssl.certificate.location`, the file "
                "with the client's certificate."
            )

    @property
    def address(self) -> str:
        """The registry's address without secrets, for messages."""
        return without_secrets(self.options["url"])

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Return all schemas of a subject, oldest first; none if there is no such subject.

        Deleted versions are included, because messages may still have their ids.

        Args:
            subject: its name.

        Raises:
            StreamError: the registry refuses, or does not answer.
        """
        path = f"subjects/{quote(subject, safe='')}/versions?deleted=true"
        numbers = self._get(path, f"the subject {subject}") or []
        return [self._version(subject, int(number)) for number in sorted(numbers)]

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return the schema with an id.

        Args:
            schema_id: the id.

        Raises:
            StreamError: the registry does not have it, refuses, or does not answer.
        """
        if (schema := self.find(schema_id)) is None:
            raise StreamError(
                f"The schema registry at {self.address} no longer has the schema {schema_id}, "
                "which the stream's progress names. Restore it, or rebuild the table with "
                "--full-refresh."
            )
        return schema

    def find(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema with an id; None if the registry does not have it.

        Args:
            schema_id: the id.

        Raises:
            StreamError: the registry refuses, or does not answer.
        """
        if schema_id not in self._ids:
            answer = self._get(f"schemas/ids/{schema_id}", f"the schema {schema_id}")
            if answer is None:
                return None
            self._ids[schema_id] = self._schema({**answer, "id": schema_id})
        return self._ids[schema_id]

    def _version(self, subject: str, number: int) -> RegisteredSchema:
        key = subject, number
        if key not in self._versions:
            path = f"subjects/{quote(subject, safe='')}/versions/{number}?deleted=true"
            answer = self._get(path, f"version {number} of the subject {subject}")
            if answer is None:
                raise StreamError(
                    f"The schema registry at {self.address} has no version {number} of the subject "
                    f"{subject}: it was deleted meanwhile. Run the model again."
                )
            self._versions[key] = schema = self._schema(answer)
            self._ids[schema.id] = schema
        return self._versions[key]

    def _schema(self, answer: Mapping[str, Any]) -> RegisteredSchema:
        references: list[Reference] = []
        for reference in answer.get("references") or ():
            schema = self._version(reference["subject"], int(reference["version"]))
            references += [*schema.references, Reference(reference["name"], schema.text)]
        kind = str(answer.get("schemaType") or "AVRO").upper()
        unique = tuple(dict.fromkeys(references))
        return RegisteredSchema(int(answer["id"]), str(answer["schema"]), kind, unique)

    @cached_property
    def _session(self) -> requests.Session:
        session = requests.Session()
        session.hooks["response"].append(refuse_other_origin)
        session.headers["Accept"] = "application/vnd.schemaregistry.v1+json, application/json"
        for option, (header, template) in HEADERS.items():
            if option in self.options:
                session.headers[header] = template.format(self.options[option])
        session.auth = self._login()
        if certificate := self.options.get("ssl.certificate.location"):
            key = self.options.get("ssl.key.location")
            session.cert = (certificate, key) if key else certificate
        return session

    def _login(self) -> Any:
        """Return user and password of the options, or of the address."""
        if login := self.options.get("basic.auth.user.info"):
            name, _, password = login.partition(":")
            return name, password
        address = get_auth_from_url(self.options["url"].split(",")[0].strip())
        # Without any `auth`, requests would take a login from ~/.netrc.
        return address if any(address) else lambda request: request

    def _get(self, path: str, what: str) -> Any:
        """Return the registry's answer; None if it does not have what is asked for."""
        retrying = Retrying(
            retry=retry_if_exception_type(_NoAnswer),
            wait=wait_random_exponential(multiplier=0.5, max=5),
            stop=stop_after_delay(RETRY_SECONDS),
            reraise=True,
        )
        try:
            return retrying(self._ask, path, what)
        except _NoAnswer as error:
            raise StreamError(
                f"The schema registry at {self.address} does not answer for {what}: {error}. "
                f"Check `{PREFIX}url`, and that the registry is running."
            ) from error

    def _ask(self, path: str, what: str) -> Any:
        # A registry of several nodes has several addresses.
        errors = []
        for address in self.options["url"].split(","):
            try:
                url = f"{address.strip().rstrip('/')}/{path}"
                # REQUESTS_CA_BUNDLE would replace the session's `verify`.
                authority = self.options.get("ssl.ca.location", True)
                answer = self._session.get(url, timeout=TIMEOUT_SECONDS, verify=authority)
            except requests.exceptions.SSLError as error:
                raise StreamError(
                    f"The certificate of the schema registry at {self.address} is not trusted, or "
                    f"the registry refuses yours: {without_secrets(str(error))}. Check "
                    f"`{PREFIX}ssl.ca.location` and `{PREFIX}ssl.certificate.location`."
                ) from error
            except (requests.ConnectionError, requests.Timeout) as error:
                errors.append(without_secrets(str(error)))
                continue
            except (requests.RequestException, OSError) as error:
                raise StreamError(
                    f"The schema registry at {self.address} cannot be asked for {what}: "
                    f"{without_secrets(str(error))}. Check the options `{PREFIX}…`."
                ) from error
            if answer.status_code not in BUSY:
                return self._content(answer, what)
            errors.append(f"{answer.status_code} {answer.reason}")
        raise _NoAnswer("; ".join(errors))

    def _content(self, answer: requests.Response, what: str) -> Any:
        if not answer.ok and answer.status_code != MISSING:
            raise StreamError(
                f"The schema registry at {self.address} refuses the request for {what}: "
                f"{answer.status_code} {answer.reason}. Check the login in the profile's `kafka` "
                f"connection (`{PREFIX}basic.auth.user.info` or `{PREFIX}bearer.auth.token`), and "
                "that it may read the subject."
            )
        try:
            content = answer.json()
        except requests.JSONDecodeError:
            content = None
        if answer.ok and content is not None:
            return content
        if isinstance(content, dict) and "error_code" in content:
            return None
        raise StreamError(
            f"{self.address} has no Confluent interface: its answer for {what} is none of a schema "
            f"registry. Check `{PREFIX}url`; some registries have the interface under a path, "
            "such as /apis/ccompat/v7."
        )
