"""Spark's SQL for sqlglot."""

from __future__ import annotations

from typing import ClassVar

from sqlglot.dialects import Spark as SparkOfSqlglot


class Spark(SparkOfSqlglot):
    """Spark's SQL, in whose texts a doubled quote is one: `'it''s'` is the text of `"it's"`."""

    class Tokenizer(SparkOfSqlglot.Tokenizer):
        STRING_ESCAPES: ClassVar = ["\\", "'", '"']
