"""Locations of files: paths of this machine as URIs, URIs as paths, and their comparison.

Hadoop's file systems, which Iceberg's Java library uses for local files, and PyArrow take the text
after the scheme and the authority as the path: `%20` is three characters of it, and `#` and `?` are
characters like others. So locations are neither encoded nor decoded. Python's `urlparse`, which
PyIceberg uses, would cut them at `#` and `?`.

Iceberg's clients of object stores cut them, too, so that all files of a table in `orders#1` would
be one object, `orders`. Nothing is written to such a location (`is_cut_by_others`).
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
_GLOB = re.compile(r"([][{}*?\\])")
_CUT = re.compile(r"[#?].*", re.DOTALL)
# Several names of one storage.
_SAME_STORAGE = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
# Their authority is a server, not a part of the path.
_SERVERS = ("file", "hdfs", "viewfs")
_AZURE = ("abfs", "abfss", "wasb", "wasbs")


def file_uri(path: Path) -> str:
    """Return the location of a file or folder of this machine.

    Args:
        path: an absolute path.
    """
    return f"file://{path}"


def local_path(location: str) -> Path | None:
    """Return the path of a file on this machine; None if the location is not local.

    Args:
        location: of a file or folder.
    """
    scheme, _, path = split_location(location)
    return Path(path) if scheme == "file" else None


def split_location(location: str) -> tuple[str, str, str]:
    """Split a location as PyIceberg's `PyArrowFileIO.parse_location` does, but not at `#` or `?`.

    Args:
        location: of a file or folder.

    Returns:
        Scheme, authority, and the path for PyArrow's filesystem, which begins with the bucket if
        there is one.
    """
    match = _SCHEME.fullmatch(location)
    if match is None:
        return "file", "", os.path.abspath(location)
    scheme, authority, path = match[1].lower(), match[2] or "", match[3]
    if scheme == "file":
        return scheme, "", "/" + path.lstrip("/")
    return scheme, authority, path if scheme in _SERVERS else f"{authority}{path}"


def is_cut_by_others(location: str) -> bool:
    """Return whether Iceberg's clients of object stores take a location for a shorter one.

    Args:
        location: of a file or folder.
    """
    return split_location(location)[0] not in _SERVERS and _CUT.search(location) is not None


def spark_path(location: str) -> str:
    """Return a location for Spark's readers of files, which take globs.

    Args:
        location: of a file or folder.
    """
    return _GLOB.sub(r"\\\1", location)


def comparable(location: str) -> str:
    """Return a text that is equal for all spellings of one location.

    Locations of two files are equal only if they differ in nothing but the server's name: who
    removes files compares this way, and should rather keep one too many.

    Args:
        location: of a file or folder.
    """
    scheme, authority, path = split_location(location)
    scheme = _SAME_STORAGE.get(scheme, scheme)
    if scheme == "file":
        return f"file:{_resolved(path)}"
    # The account of an Azure container has several host names.
    host = "" if scheme in _SERVERS else authority.partition("@")[0]
    inner = path if scheme in _SERVERS else path.removeprefix(authority)
    storage = "azure" if scheme in _AZURE else scheme
    return f"{storage}:{host}{_normalized(inner)}"


def comparable_folder(location: str) -> str:
    """Return a text for `is_within` that is equal for all spellings of one folder.

    Args:
        location: of a folder, which may be a symbolic link itself, unlike a file.
    """
    scheme, _, path = split_location(location)
    return (
        f"file:{_resolved_folder(_normalized(path))}" if scheme == "file" else comparable(location)
    )


def forget_links() -> None:
    """Look at symbolic links again: they may have changed since the last comparison."""
    _resolved_folder.cache_clear()


def comparables(location: str) -> set[str]:
    """Return what a location may mean: some programs decode it as a URI, or cut it as one.

    Args:
        location: of a file or folder.
    """
    meanings = {location, unquote(location), _CUT.sub("", location)}
    return {comparable(meaning) for meaning in meanings}


def is_within(location: str, folder: str) -> bool:
    """Return whether a file or folder is another folder, or within it.

    Args:
        location: as `comparable` returns it.
        folder: as `comparable_folder` returns it.
    """
    return location == folder or location.startswith(folder.rstrip("/") + "/")


def _resolved(path: str) -> str:
    folder, name = os.path.split(_normalized(path))
    return os.path.join(_resolved_folder(folder), name)


def _normalized(path: str) -> str:
    # `normpath` keeps two slashes at the beginning, which mean one to Hadoop.
    return os.path.normpath("/" + path.lstrip("/"))


@lru_cache(maxsize=10_000)
def _resolved_folder(folder: str) -> str:
    # Files that a symbolic link leads to have two paths. Iceberg's files are no links themselves.
    try:
        return os.path.realpath(folder)
    except ValueError:
        return folder  # of an object store: local names have no NUL
