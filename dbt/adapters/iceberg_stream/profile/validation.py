"""Checks a profile, and lists all its errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.names import check_build_name
from dbt.adapters.iceberg_stream.builds.settings import PUBLISH_CHOICES
from dbt.adapters.iceberg_stream.catalog.catalogs import SPARK_CATALOG
from dbt.adapters.iceberg_stream.catalog.identity.transport import is_loopback, is_private
from dbt.adapters.iceberg_stream.catalog.settings import TYPES, signs_remotely
from dbt.adapters.iceberg_stream.engines.settings import SECRET
from dbt.adapters.iceberg_stream.errors.redaction import holds_secret
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be, must_be_one_of

METHODS = ("embedded", "connect")
TOKEN_KEYS = ("token", "token_file", "token_command", "oauth2")
# The keys that each catalog has for itself.
CATALOG_KEYS = (
    "catalog_properties",
    "warehouse",
    *TOKEN_KEYS,
    "ambient_credentials",
    "allow_plaintext",
)
OAUTH2_KEYS = ("token_uri", "client_id", "client_secret")
# YAML reads a bare `off` as false.
NO_CACHE = (False, "off")
CACHES = ("off", "memory", "disk")
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
CATALOG_NAME = re.compile(r"[A-Za-z_]\w*")
MEMORY = re.compile(r"^\d+[kmgt]$", re.IGNORECASE)
# Properties that are sent to the catalog with each request.
SECRET_OF_REQUESTS = r"(?i)^header\.(?!x-iceberg)|^rest\.sigv4-enabled$"
PLAINTEXT = (
    "Use TLS, or set `allow_plaintext: true` if nobody else can read what this network transports"
)


def profile_errors(data: dict[str, Any], keys: Iterable[str]) -> list[str]:
    """Return a message for each error in a profile's output.

    Args:
        data: the output of the profile.
        keys: all valid keys.
    """
    return [
        *_unknown_keys(data, set(keys)),
        *_bad_values(data),
        *_bad_catalog(data),
        *_bad_identity(data),
        *_plaintext_of_catalog(data),
        *_bad_server(data),
        *_bad_repository(data),
        *_bad_connections(data),
        *catalog_errors(
            data.get("catalogs") or {}, data.get("database", "lake"), data.get("method")
        ),
    ]


def catalog_errors(catalogs: Any, database: str, method: str | None) -> list[str]:
    """Return a message for each error in a profile's `catalogs`.

    Args:
        catalogs: the catalogs by name.
        database: name of the profile's own catalog.
        method: the profile's `method`.
    """
    if not isinstance(catalogs, dict) or not all(isinstance(c, dict) for c in catalogs.values()):
        return ["`catalogs` must be a mapping of names to catalogs, e.g. {partner: {…}}"]
    errors = []
    taken = {SPARK_CATALOG: "Spark's own catalog"}
    taken[str(database).lower()] = "the profile's own catalog"
    for name, keys in catalogs.items():
        place = f"`catalogs: {name}`"
        if not CATALOG_NAME.fullmatch(str(name)):
            errors.append(f"{place}: the name must have only letters, digits and _")
        if owner := taken.get(str(name).lower()):
            errors.append(f"{place}: the name is that of {owner}: choose another one")
        taken[str(name).lower()] = f"the catalog `{name}`"
        of_catalog = [
            *_unknown_keys(keys, set(CATALOG_KEYS)),
            *_bad_catalog(keys | {"method": method}),
            *_bad_identity(keys),
            *_plaintext_of_catalog(keys),
        ]
        if not keys.get("catalog_properties") and not keys.get("warehouse"):
            of_catalog.append(
                "`catalog_properties` is missing; or set `warehouse`, the folder of a SQLite file"
            )
        errors += [f"{place}: {error}" for error in of_catalog]
    return errors


def in_bytes(size: str) -> int:
    """Convert a size such as `256m` to bytes."""
    return int(size[:-1]) * UNITS[size[-1].lower()]


def _unknown_keys(data: dict[str, Any], keys: set[str]) -> list[str]:
    errors = []
    for key in sorted(set(data) - keys):
        close = difflib.get_close_matches(key, keys, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(sorted(keys))}"
        errors.append(f"unknown key `{key}`: {hint}")
    return errors


def _bad_values(data: dict[str, Any]) -> list[str]:
    errors = []
    schema = data.get("schema")
    if not isinstance(schema, str) or not schema.strip():
        errors.append("`schema` is missing: set the namespace of the models")
    method = data.get("method", "embedded")
    if method not in METHODS:
        errors.append(must_be_one_of("method", method, METHODS))
    database = data.get("database", "lake")
    if not isinstance(database, str) or not CATALOG_NAME.fullmatch(database):
        errors.append(
            f"`database` must be a catalog name of letters, digits and _; got {database!r}"
        )
    if database == SPARK_CATALOG:
        errors.append("`database: spark_catalog` is Spark's own catalog: choose another name")
    memory = data.get("driver_memory", "2g")
    if not isinstance(memory, str) or not MEMORY.match(memory):
        errors.append(must_be("driver_memory", memory, "a size such as 2g or 1500m"))
    cache = data.get("result_cache", "off")
    if cache is not False and cache not in CACHES:
        errors.append(must_be_one_of("result_cache", cache, CACHES))
    size = data.get("result_cache_size", "256m")
    if not isinstance(size, str) or not MEMORY.match(size):
        errors.append(must_be("result_cache_size", size, "a size such as 256m or 1g"))
    publish = data.get("publish", "immediately")
    if publish not in PUBLISH_CHOICES:
        errors.append(must_be_one_of("publish", publish, PUBLISH_CHOICES))
    try:
        check_build_name(str(data.get("build") or "any"))
    except BuildError as error:
        errors.append(f"`build`: {error}")
    days = data.get("keep_builds_days", 2)
    if isinstance(days, bool) or not isinstance(days, int | float) or days <= 0:
        errors.append(must_be("keep_builds_days", days, "a number of days greater than 0"))
    for key in ("keep_alive", "start_timeout"):
        value = data.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            errors.append(must_be(key, value, "a number of seconds"))
    most_rows = data.get("small_table_rows")
    is_number = isinstance(most_rows, int) and not isinstance(most_rows, bool)
    if most_rows is not None and not (is_number and most_rows >= 0):
        errors.append(must_be("small_table_rows", most_rows, "a number of rows, or 0"))
    for key in ("build_summary", "rebuild_on_conflict", "skip_unchanged", "allow_plaintext"):
        if not isinstance(value := data.get(key, False), bool):
            errors.append(must_be(key, value, "true or false"))
    if not isinstance(data.get("spark_conf", {}), dict):
        errors.append("`spark_conf` must be a mapping of Spark settings to values")
    return errors


def _bad_catalog(data: dict[str, Any]) -> list[str]:
    properties = data.get("catalog_properties") or {}
    if not isinstance(properties, dict):
        return ["`catalog_properties` must be a mapping, e.g. {type: rest, uri: https://…}"]
    errors = []
    if not properties:
        if data.get("method") == "connect":
            errors.append(
                "`catalog_properties` is missing: `method: connect` needs a catalog that the "
                "cluster can reach, e.g. {type: rest, uri: https://…, warehouse: …}"
            )
        return errors
    if data.get("method") == "connect" and signs_remotely(properties):
        errors.append(
            "`catalog_properties` have remote signing, and Iceberg caches signatures for all users "
            "of the Spark Connect server: remove it, and let the catalog vend credentials"
        )
    kind = properties.get("type", "rest")
    if kind not in TYPES:
        errors.append(must_be_one_of("catalog_properties: type", kind, TYPES))
    if kind == "rest" and not properties.get("uri"):
        errors.append("`catalog_properties: uri` is missing: set the REST catalog's address")
    if holds_secret(str(properties.get("uri", ""))):
        errors.append(
            "`catalog_properties: uri` contains a password or a user: use `jdbc.user` and "
            "`jdbc.password`, or a token"
        )
    if kind == "jdbc" and not str(properties.get("uri", "")).startswith("jdbc:"):
        errors.append("`catalog_properties: uri` of a jdbc catalog must begin with `jdbc:`")
    errors += [
        f"`catalog_properties: {key}` is not supported: use the profile's `{instead}`"
        for key, instead in (("token", "token"), ("credential", "oauth2"))
        if key in properties
    ]
    return errors


def _bad_identity(data: dict[str, Any]) -> list[str]:
    sources = [key for key in TOKEN_KEYS if data.get(key)]
    errors = []
    if len(sources) > 1:
        names = ", ".join(f"`{key}`" for key in sources)
        errors.append(f"{names} contradict each other: use one of them")
    empty = [key for key in TOKEN_KEYS if data.get(key) == ""]
    errors += [f"`{key}` is empty: set the variable that it comes from" for key in empty]
    if sources and not data.get("catalog_properties"):
        errors.append(f"`{sources[0]}` needs a catalog: add `catalog_properties`")
    oauth2 = data.get("oauth2") or {}
    if not isinstance(oauth2, dict):
        errors.append("`oauth2` must be a mapping with " + ", ".join(OAUTH2_KEYS))
    elif oauth2:
        errors += [f"`oauth2: {key}` is missing" for key in OAUTH2_KEYS if not oauth2.get(key)]
    return errors


def _bad_server(data: dict[str, Any]) -> list[str]:
    if data.get("method") != "connect":
        return []
    errors = []
    if not data.get("host"):
        errors.append("`host` is missing: set the Spark Connect server's host")
    port = data.get("port", 15002)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        errors.append(must_be("port", port, "a port number"))
    errors += plaintext_to_server(data)
    return errors


def plaintext_to_server(data: Mapping[str, Any]) -> list[str]:
    """Return a message if secrets would go to the Spark Connect server without TLS.

    Args:
        data: the output of the profile.
    """
    if data.get("method") != "connect" or data.get("use_ssl"):
        return []
    # Spark's client itself sends a token without TLS to the name `localhost` only.
    if data.get("server_token") and str(data.get("host")).lower() != "localhost":
        return ["`server_token` would be sent without TLS: set `use_ssl: true`"]
    if data.get("allow_plaintext") or is_loopback(data.get("host")):
        return []
    further = data.get("catalogs")
    catalogs = list(further.values()) if isinstance(further, dict) else []
    secrets = [key for catalog in (data, *catalogs) for key in _secrets(catalog)]
    kafka = data.get("kafka")
    connections = kafka.values() if isinstance(kafka, dict) else ()
    secrets += [f"kafka: {key}" for options in connections for key in _secret_keys(options)]
    if not secrets:
        return []
    return [
        f"`{secrets[0]}` would be sent to the Spark Connect server {data.get('host')} without "
        f"TLS: set `use_ssl: true`. {PLAINTEXT}"
    ]


def _secrets(catalog: Any) -> list[str]:
    """Return the names of a catalog's keys and properties that are secret or lead to a secret."""
    if not isinstance(catalog, dict):
        return []
    properties = _secret_keys(catalog.get("catalog_properties"))
    return [key for key in TOKEN_KEYS if catalog.get(key)] + properties


def _secret_keys(properties: Any) -> list[str]:
    if not isinstance(properties, dict):
        return []
    return [str(key) for key in properties if re.search(SECRET, str(key))]


def _plaintext_of_catalog(data: dict[str, Any]) -> list[str]:
    """Return messages for tokens and client secrets that would be sent without TLS."""
    if data.get("allow_plaintext"):
        return []
    errors = []
    oauth2 = data.get("oauth2")
    token_uri = oauth2.get("token_uri") if isinstance(oauth2, dict) else None
    if token_uri and not is_private(str(token_uri)):
        errors.append(f"`oauth2: token_uri` would get the client's secret without TLS. {PLAINTEXT}")
    properties = data.get("catalog_properties")
    if not isinstance(properties, dict) or properties.get("type", "rest") != "rest":
        return errors
    sent = [key for key in TOKEN_KEYS if data.get(key)]
    sent += [key for key in map(str, properties) if re.search(SECRET_OF_REQUESTS, key)]
    for key in ("uri", "oauth2-server-uri", "s3.signer.uri"):
        if properties.get(key) and sent and not is_private(str(properties[key])):
            errors.append(
                f"`catalog_properties: {key}` would get the secret of `{sent[0]}` without TLS. "
                f"{PLAINTEXT}"
            )
    return errors


def _bad_repository(data: dict[str, Any]) -> list[str]:
    address = str(data.get("maven_repository") or "https://")
    if data.get("allow_plaintext") or is_private(address) or address.startswith("file:"):
        return []
    return [
        "`maven_repository` does not use TLS, so others could replace the jars that run on this "
        f"machine. {PLAINTEXT}"
    ]


def _bad_connections(data: dict[str, Any]) -> list[str]:
    for name, example in (("kafka", "sasl.username"), ("postgres", "host")):
        connections = data.get(name) or {}
        if not isinstance(connections, dict) or not all(
            isinstance(options, dict) for options in connections.values()
        ):
            return [
                f"`{name}` must be a mapping of connections to options, "
                f"e.g. {{shop: {{{example}: …}}}}"
            ]
    return []
