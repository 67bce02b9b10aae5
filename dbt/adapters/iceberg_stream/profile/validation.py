"""What is wrong with a profile, all of it at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from dbt.adapters.iceberg_stream.catalog.settings import TYPES
from dbt.adapters.iceberg_stream.errors.redaction import holds_secret
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be, must_be_one_of

METHODS = ("embedded", "connect")
TOKEN_KEYS = ("token", "token_file", "token_command", "oauth2")
OAUTH2_KEYS = ("token_uri", "client_id", "client_secret")
# YAML reads a bare `off` as false.
NO_CACHE = (False, "off")
CACHES = ("off", "memory", "disk")
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
MEMORY = re.compile(r"^\d+[kmgt]$", re.IGNORECASE)
LOCAL_HOSTS = ("localhost",)


def faults(data: dict[str, Any], known: Iterable[str]) -> list[str]:
    """One line for each fault of a profile's output."""
    return [
        *_unknown_keys(data, set(known)),
        *_bad_values(data),
        *_bad_catalog(data),
        *_bad_identity(data),
        *_bad_server(data),
        *_bad_kafka(data),
    ]


def in_bytes(size: str) -> int:
    """A size such as `256m`."""
    return int(size[:-1]) * UNITS[size[-1].lower()]


def _unknown_keys(data: dict[str, Any], known: set[str]) -> list[str]:
    found = []
    for key in sorted(set(data) - known):
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(sorted(known))}"
        found.append(f"unknown key `{key}`: {hint}")
    return found


def _bad_values(data: dict[str, Any]) -> list[str]:
    found = []
    schema = data.get("schema")
    if not isinstance(schema, str) or not schema.strip():
        found.append("`schema` is missing: the namespace that models are built into")
    method = data.get("method", "embedded")
    if method not in METHODS:
        found.append(must_be_one_of("method", method, METHODS))
    database = data.get("database", "lake")
    if not isinstance(database, str) or not re.fullmatch(r"[A-Za-z_]\w*", database):
        found.append(f"`database: {database}` is no catalog name: use letters, digits and _")
    if database == "spark_catalog":
        found.append("`database: spark_catalog` is Spark's own catalog: choose another name")
    memory = data.get("driver_memory", "2g")
    if not isinstance(memory, str) or not MEMORY.match(memory):
        found.append(must_be("driver_memory", memory, "a size such as 2g or 1500m"))
    cache = data.get("result_cache", "off")
    if cache is not False and cache not in CACHES:
        found.append(must_be_one_of("result_cache", cache, CACHES))
    size = data.get("result_cache_size", "256m")
    if not isinstance(size, str) or not MEMORY.match(size):
        found.append(must_be("result_cache_size", size, "a size such as 256m or 1g"))
    for key in ("keep_alive", "start_timeout"):
        value = data.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            found.append(must_be(key, value, "a number of seconds"))
    if not isinstance(data.get("spark_conf", {}), dict):
        found.append("`spark_conf` must be a mapping of Spark settings to values")
    return found


def _bad_catalog(data: dict[str, Any]) -> list[str]:
    properties = data.get("catalog_properties") or {}
    if not isinstance(properties, dict):
        return ["`catalog_properties` must be a mapping, e.g. {type: rest, uri: https://…}"]
    found = []
    if not properties:
        if data.get("method") == "connect":
            found.append(
                "`catalog_properties` is missing: `method: connect` needs a catalog that the "
                "cluster can reach, e.g. {type: rest, uri: https://…, warehouse: …}"
            )
        return found
    kind = properties.get("type", "rest")
    if kind not in TYPES:
        found.append(must_be_one_of("catalog_properties: type", kind, TYPES))
    if kind == "rest" and not properties.get("uri"):
        found.append("`catalog_properties: uri` is missing: where the REST catalog answers")
    if holds_secret(str(properties.get("uri", ""))):
        found.append(
            "`catalog_properties: uri` holds a password or a user: use `jdbc.user` and "
            "`jdbc.password`, or a token"
        )
    if kind == "jdbc" and not str(properties.get("uri", "")).startswith("jdbc:"):
        found.append("`catalog_properties: uri` of a jdbc catalog begins with `jdbc:`")
    found += [
        f"`catalog_properties: {key}` is a secret of its own: use the profile's `{instead}`"
        for key, instead in (("token", "token"), ("credential", "oauth2"))
        if key in properties
    ]
    return found


def _bad_identity(data: dict[str, Any]) -> list[str]:
    given = [key for key in TOKEN_KEYS if data.get(key)]
    found = []
    if len(given) > 1:
        names = ", ".join(f"`{key}`" for key in given)
        found.append(f"{names} contradict each other: a user has one source of tokens")
    empty = [key for key in TOKEN_KEYS if data.get(key) == ""]
    found += [f"`{key}` is empty: set the variable that it comes from" for key in empty]
    if given and not data.get("catalog_properties"):
        found.append(f"`{given[0]}` has no catalog to go to: add `catalog_properties`")
    oauth2 = data.get("oauth2") or {}
    if not isinstance(oauth2, dict):
        found.append("`oauth2` must be a mapping with " + ", ".join(OAUTH2_KEYS))
    elif oauth2:
        found += [f"`oauth2: {key}` is missing" for key in OAUTH2_KEYS if not oauth2.get(key)]
    return found


def _bad_server(data: dict[str, Any]) -> list[str]:
    if data.get("method") != "connect":
        return []
    found = []
    if not data.get("host"):
        found.append("`host` is missing: where the Spark Connect server answers")
    port = data.get("port", 15002)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        found.append(f"`port: {port}` is no port number")
    plain = not data.get("use_ssl")
    if data.get("server_token") and plain and data.get("host") not in LOCAL_HOSTS:
        found.append("`server_token` would travel in the clear: set `use_ssl: true`")
    return found


def _bad_kafka(data: dict[str, Any]) -> list[str]:
    connections = data.get("kafka") or {}
    if isinstance(connections, dict) and all(isinstance(c, dict) for c in connections.values()):
        return []
    return ["`kafka` must be a mapping of connections to options, e.g. {shop: {sasl.username: …}}"]
