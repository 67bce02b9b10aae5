"""Estimates the seconds of a full scan from the shape of a table.

The model is linear: each part of a table adds its own seconds. The constants were measured with
Spark 4.1 and Iceberg 1.12 on two cores with warm local files, with a query that aggregates all
columns. On other machines each part costs another time, and on object stores each file costs more.
So the estimates show which work pays most; they do not promise seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

# Bytes of Parquet per second: 187 MB, 10 million rows, take 1.9 s, of which 0.3 s are the query's.
BYTES_PER_SECOND = 100e6
# For each data file: a million rows take 1.9 s in 1,000 files, 0.4 s in one.
DATA_FILE_SECONDS = 1.5e-3
# For each manifest: 400 small files take 1.7 s in 400 manifests, 0.9 s in one.
MANIFEST_SECONDS = 2e-3
# For each data file with position delete files: 400 take 2.8 s with one each, without them 1.0 s.
POSITION_TARGET_SECONDS = 4e-3
# For each position delete file, because those of one data file are opened together: 20 data files
# take 0.1 s longer with 400 files than with 20.
POSITION_FILE_SECONDS = 0.3e-3
# For each deletion vector: 400 data files take 1.5 s with a vector each, without them 1.0 s.
VECTOR_SECONDS = 0.8e-3
# For each deleted position: 400,000 of 20 data files take 0.1 s.
POSITION_SECONDS = 3e-7
# For each key of an equality delete and each split that it applies to, because Spark builds the set
# of keys again for each split. The more keys in a set, the more a key costs: 50 data files with
# 3,000,000 keys take 65.7 s (0.6 s without them), 50 with 1,000,000 12.8 s, 20 with 400,000 1.9 s.
# That is 4.3, 2.4 and 1.9e-7 s.
KEY_SECONDS = 3e-7


@dataclass(frozen=True)
class Deletes:
    """Delete files that a scan applies.

    Attributes:
        position_files: how many position delete files.
        position_targets: how many data files have position delete files.
        vectors: how many deletion vectors.
        positions: deleted positions in position delete files and deletion vectors.
        split_keys: keys of equality deletes, each once for each split that it applies to.
    """

    position_files: int = 0
    position_targets: int = 0
    vectors: int = 0
    positions: int = 0
    split_keys: int = 0

    @property
    def seconds(self) -> float:
        """The seconds that a scan takes longer with them."""
        return (
            self.position_files * POSITION_FILE_SECONDS
            + self.position_targets * POSITION_TARGET_SECONDS
            + self.vectors * VECTOR_SECONDS
            + self.positions * POSITION_SECONDS
            + self.split_keys * KEY_SECONDS
        )


@dataclass(frozen=True)
class ScanCost:
    """What a full scan reads, and its estimated seconds.

    Attributes:
        bytes: of the data files.
        data_files: how many data files.
        manifests: how many manifests.
        positional: position delete files and deletion vectors.
        equality: equality delete files.
    """

    bytes: int
    data_files: int
    manifests: int
    positional: Deletes = Deletes()
    equality: Deletes = Deletes()

    @property
    def seconds(self) -> float:
        """The estimated seconds of the scan."""
        return (
            self.bytes / BYTES_PER_SECOND
            + self.data_files * DATA_FILE_SECONDS
            + self.manifests * MANIFEST_SECONDS
            + self.positional.seconds
            + self.equality.seconds
        )
