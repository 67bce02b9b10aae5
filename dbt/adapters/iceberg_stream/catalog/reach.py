"""Where the files of a catalog's tables may be.

Metadata name any location, and whoever may write a table's metadata chooses it. So a file on this
machine is read, written or deleted only below the folder of a local warehouse. Other storages have
credentials of their own, which decide.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# The property of a FileIO with the schemes of storages and the folders, one in a line.
REACH = "iceberg-stream.reach"
# Hadoop's file system that shows only the folders of its mount table.
MOUNTED = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
# Other file systems that Hadoop's client brings; the name of a class that does not exist.
OTHER_SYSTEMS = ("hdfs", "webhdfs", "swebhdfs", "viewfs", "http", "https", "ftp", "sftp", "har")
DISABLED = "outside.the.warehouse.of.the.Catalog"
OBJECT_STORES = ("s3", "s3a", "s3n", "oss", "gs", "gcs", "abfs", "abfss", "wasb", "wasbs")


class OutOfReach(PermissionError):
    """A file is outside the warehouse."""


def reach(schemes: Iterable[str], folders: Iterable[str]) -> dict[str, str]:
    """Return the property `REACH` of a FileIO.

    Args:
        schemes: of storages whose own credentials decide, such as `s3`.
        folders: absolute paths on this machine below which files may be.
    """
    lines = [*(f"{scheme}:" for scheme in schemes), *(os.path.realpath(f) for f in folders)]
    return {REACH: "\n".join(lines)}


def require_reach(properties: Mapping[str, Any], scheme: str, path: str) -> None:
    """Check that a file is where files of the catalog may be, after links are followed.

    Args:
        properties: of the table's FileIO; without `REACH`, files may be anywhere.
        scheme: of the file's location; `file` for this machine.
        path: the file's.

    Raises:
        OutOfReach: it is elsewhere.
    """
    if (allowed := properties.get(REACH)) is None:
        return
    roots = str(allowed).split("\n")
    if f"{scheme}:" in roots:
        return
    if scheme == "file":
        actual = os.path.realpath(path)
        folders = [root for root in roots if root.startswith("/")]
        if any(os.path.commonpath((folder, actual)) == folder for folder in folders):
            return
    raise OutOfReach(
        f"{scheme}:{path} is outside the catalog's warehouse, so it is neither read nor written. "
        "If the catalog keeps tables there, set `warehouse` in the profile to their folder."
    )


def hadoop_reach(schemes: Iterable[str], folders: Iterable[str]) -> dict[str, str]:
    """Return properties of Spark's catalog with the same reach, for Hadoop's file systems.

    Args:
        schemes: as for `reach`.
        folders: as for `reach`.
    """
    # Metadata may have the name of a folder that is a link.
    actual = {Path(os.path.abspath(folder)): Path(folder).resolve() for folder in folders}
    actual |= {path: path for path in actual.values()}
    classes = dict.fromkeys({*OTHER_SYSTEMS} - {*schemes}, DISABLED)
    classes["file"] = MOUNTED if actual else DISABLED
    settings = {f"fs.{scheme}.impl": name for scheme, name in classes.items()}
    # Spark itself has an open one of the same scheme.
    settings |= {f"fs.{scheme}.impl.disable.cache": "true" for scheme in classes}
    settings["fs.viewfs.overload.scheme.target.file.impl"] = "org.apache.hadoop.fs.LocalFileSystem"
    settings |= {
        f"fs.viewfs.mounttable.default.link.{name}": path.as_uri() for name, path in actual.items()
    }
    return {f"hadoop.{name}": value for name, value in settings.items()}
