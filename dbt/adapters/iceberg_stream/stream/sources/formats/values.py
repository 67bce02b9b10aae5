"""Values of messages as columns take them: texts of times, decimals, bytes in other forms.

Each form has one rule, whatever format of messages it comes from, and all values of a column are
converted at once.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import cached_property, partial
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.sources.formats.arrays import Bad, convert_each
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import Scalar

# How values become those of a column; the empty form is a cast.
MILLIS, NANOS = "milliseconds", "nanoseconds"
UUID_BYTES = "UUID"
UNSCALED = "unscaled bytes"
DATE_TEXT, INSTANT_TEXT, LOCAL_TEXT = "date", "instant", "local time"
BASE64 = "base64"
# Numbers in JSON: rounded to the column, or those of a database, which must not be rounded.
NUMBER, EXACT_NUMBER, CONNECT_NUMBER = "number", "exact number", "number of Connect"
TIME_TEXTS = (DATE_TEXT, INSTANT_TEXT, LOCAL_TEXT)
# Floats of 32 bits, which must not be rounded to 64 bits first; and any JSON.
SINGLE, JSON = "float", "JSON"
# Forms of values that are read as they are written in JSON.
RAW = (NUMBER, EXACT_NUMBER, CONNECT_NUMBER, SINGLE, JSON)
# Floats that are written as strings.
NAMED_FLOATS = {
    "NaN": math.nan,
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
}

# The session's setting that has the zone of times without one.
TIME_ZONE = "spark.sql.session.timeZone"
UTC = ("UTC", "Etc/UTC", "GMT", "Z")
# Not of the year 0, which Python does not have.
DAY = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])-\d\d-\d\d"
MINUTE = rf"{DAY}[ T]\d\d:\d\d"
SECOND = r":\d\d(?:\.\d{1,9})?"
# Java refuses offsets of more than 18 hours, PyArrow those of more than 24.
OFFSET = r"(?:Z|[+-](?:0\d|1[0-7]):?[0-5]\d)"
IS_INSTANT = f"^{MINUTE}{SECOND}{OFFSET}$"
# Some writers leave out seconds that are zero.
IS_LOCAL = f"^(?:{MINUTE}(?:{SECOND})?|{DAY})$"
IS_DAY = f"^{DAY}(?:[ T].*)?$"
DAY_LENGTH, MILLISECONDS_LENGTH = len("2026-11-26"), len("2026-11-26T10:11:12.131Z")
# Digits beyond microseconds, which PyArrow refuses.
FINER = r"(\.\d{6})\d+"
# Times in all forms that are read.
TIME = re.compile(
    r"(?P<day>\d{4}-\d\d?-\d\d?)"
    r"(?:[ T](?P<hour>\d\d?):(?P<minute>\d\d?)(?::(?P<second>\d\d?)(?:\.(?P<fraction>\d*))?)?"
    r" ?(?P<zone>Z|UTC|GMT|[+-]\d\d?(?::?\d\d)?)?)?",
    re.ASCII,
)
MOST_OFFSET = timedelta(hours=18)
EPOCH = datetime(1970, 1, 1)
MICROSECOND = timedelta(microseconds=1)
INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")

IS_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
IS_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
# More digits than any column has.
WIDE = Context(prec=200)
MOST_DIGITS = 76
# Bytes of a decimal in Arrow.
WIDTH = 16
DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
# Places of the digits in a UUID as text.
PLACES = [place for place in range(36) if place not in (8, 13, 18, 23)]

OF_TIME = (
    "has a number for a time. Declare the column as bigint, and convert it in the query with "
    "timestamp_micros or timestamp_millis"
)
OF_BYTES = (
    "has a text for a decimal that may be a number in base64, of unknown scale. Set the "
    "connector's decimal.handling.mode to double; or to string, declare the column as string, and "
    "cast it in the query"
)
OF_SCALE = (
    "has a number with more decimals than its column. Declare the column with a larger scale, and "
    "round it in the query"
)


@dataclass(frozen=True)
class Values:
    """Converts values.

    Attributes:
        zone: the time zone of times without one.
    """

    zone: str = "UTC"

    def convert(self, array: pa.Array, node: Scalar) -> tuple[pa.Array, Bad]:
        """Return values as a column takes them, and which cannot be converted.

        Args:
            array: the values as they are read.
            node: their type.
        """
        if not node.form and array.type == node.column:
            return array, None
        return convert_each(array, node.column, lambda part: self.convert_all(part, node))

    def convert_all(self, array: pa.Array, node: Scalar) -> pa.Array:
        """Return values as a column takes them.

        Args:
            array: the values as they are read.
            node: their type.

        Raises:
            pa.ArrowInvalid: one of them cannot be converted.
        """
        if node.form == INSTANT_TEXT:
            return self._instants(array)
        return FORMS[node.form](array, node.column)

    def in_zone(self, times: pa.Array) -> pa.Array:
        """Return the instants of times in the zone; where clocks go forward, as if they had not.

        Args:
            times: the times, without a zone.
        """
        if self.zone in UTC:
            return times.cast(INSTANT)
        micros = [
            None if value is None else self._micros(EPOCH + value * MICROSECOND)
            for value in times.cast(pa.int64()).to_pylist()
        ]
        return pa.array(micros, INSTANT)

    def out_of_zone(self, instants: pa.Array) -> pa.Array:
        """Return the times in the zone of instants.

        Args:
            instants: the instants.
        """
        if self.zone in UTC:
            return instants.cast(LOCAL)
        micros = [
            None if value is None else value + self._offset_at(value) // MICROSECOND
            for value in instants.cast(pa.int64()).to_pylist()
        ]
        return pa.array(micros, LOCAL)

    def _offset_at(self, micros: int) -> timedelta:
        moment = (EPOCH + micros * MICROSECOND).replace(tzinfo=timezone.utc)
        return moment.astimezone(self._zone).utcoffset() or timedelta()

    def _instants(self, texts: pa.StringArray) -> pa.Array:
        is_instant = pc.match_substring_regex(texts, IS_INSTANT)
        if _are_all(is_instant):
            return _times(texts, INSTANT)
        instants = _times(pc.if_else(is_instant, texts, None), INSTANT)
        rest = pc.if_else(is_instant, None, texts)
        is_local = pc.match_substring_regex(rest, IS_LOCAL)
        local = self.in_zone(_times(pc.if_else(is_local, rest, None), LOCAL))
        others = [
            None if text is None else self._instant(text)
            for text in pc.if_else(is_local, None, rest).to_pylist()
        ]
        return pc.coalesce(instants, local, pa.array(others, INSTANT))

    def _instant(self, text: str) -> int:
        time, offset = read_time(text)
        if offset is not None:
            return (time - EPOCH - offset) // MICROSECOND
        return self._micros(time)

    def _micros(self, time: datetime) -> int:
        offset = self._zone.utcoffset(time)
        return (time - EPOCH - (offset or timedelta())) // MICROSECOND

    @cached_property
    def _zone(self) -> timezone | ZoneInfo:
        if match := re.fullmatch(r"(?:UTC|GMT)?([+-])(\d\d):(\d\d)", self.zone):
            sign, hours, minutes = match.groups()
            offset = timedelta(hours=int(hours), minutes=int(minutes))
            return timezone(offset if sign == "+" else -offset)
        return timezone.utc if self.zone in UTC else ZoneInfo(self.zone)


def why_bad(node: Scalar, value: object) -> str | None:
    """Return why a value cannot be converted; None if no more can be said than that.

    Args:
        node: its type.
        value: as it is read.
    """
    if node.form in TIME_TEXTS and isinstance(value, str):
        return OF_TIME if IS_NUMBER.fullmatch(value) else None
    if node.form != EXACT_NUMBER or not isinstance(value, bytes):
        return OF_SCALE if node.form == CONNECT_NUMBER and _is_too_long(node, value) else None
    if value.startswith(b"{"):  # the scale and the number
        return OF_BYTES
    text = _json_text(value) if value.startswith(b'"') else ""
    if text and IS_BASE64.fullmatch(text):
        return OF_BYTES
    return OF_SCALE if _is_too_long(node, value) else None


def _is_too_long(node: Scalar, value: object) -> bool:
    try:
        number = _json_number(value) if isinstance(value, bytes) else None
    except pa.ArrowInvalid:
        return False
    if number is None:
        return False
    _, digits, exponent = number.as_tuple()
    zeros = next((n for n, digit in enumerate(reversed(digits)) if digit), len(digits))
    return int(exponent) + zeros < -node.column.scale


def read_time(text: str) -> tuple[datetime, timedelta | None]:
    """Return a time, and its offset if it has one.

    Args:
        text: the time, as in ISO 8601, of which months to seconds may have one digit.

    Raises:
        pa.ArrowInvalid: it is no time.
    """
    match = TIME.fullmatch(text.strip())
    if match is None:
        raise pa.ArrowInvalid(text)
    parts = match.groupdict(default="0")
    try:
        day = date(*map(int, parts["day"].split("-")))
        micros = int(f"{parts['fraction']:0<6}"[:6])
        hour, minute, second = (int(parts[name]) for name in ("hour", "minute", "second"))
        time = datetime(day.year, day.month, day.day, hour, minute, second, micros)
        return time, None if match["zone"] is None else _offset(match["zone"])
    except ValueError as error:
        raise pa.ArrowInvalid(text) from error


def _offset(zone: str) -> timedelta:
    if not zone[1:2].isdigit():
        return timedelta()
    digits = zone[1:].replace(":", "")
    hours, minutes = (digits[:-2], digits[-2:]) if len(digits) > 2 else (digits, "0")
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    if offset > MOST_OFFSET or int(minutes) > 59:
        raise ValueError(zone)
    return -offset if zone.startswith("-") else offset


def _times(texts: pa.StringArray, kind: pa.TimestampType) -> pa.Array:
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > MILLISECONDS_LENGTH:
        texts = pc.replace_substring_regex(texts, FINER, r"\1")
    return texts.cast(kind)


def _local_times(texts: pa.StringArray, kind: pa.TimestampType) -> pa.Array:
    is_local = pc.match_substring_regex(texts, IS_LOCAL)
    if _are_all(is_local):
        return _times(texts, kind)
    others = [
        None if text is None else _local_micros(text)
        for text in pc.if_else(is_local, None, texts).to_pylist()
    ]
    return pc.coalesce(_times(pc.if_else(is_local, texts, None), kind), pa.array(others, kind))


def _local_micros(text: str) -> int:
    time, offset = read_time(text)
    if offset is not None:
        raise pa.ArrowInvalid(text)  # it is an instant
    return (time - EPOCH) // MICROSECOND


def _dates(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    is_day = pc.match_substring_regex(texts, IS_DAY)
    days = pc.utf8_slice_codeunits(pc.if_else(is_day, texts, None), 0, DAY_LENGTH).cast(kind)
    if _are_all(is_day):
        return days
    others = [
        None if text is None else _read_date(text)
        for text in pc.if_else(is_day, None, texts).to_pylist()
    ]
    return pc.coalesce(days, pa.array(others, kind))


def _read_date(text: str) -> date:
    """Return the date that a text begins with; what follows it is a time of any form."""
    day, *_ = re.split("[ T]", text.strip(), maxsplit=1)
    return read_time(day)[0].date()


def _are_all(conditions: pa.BooleanArray) -> bool:
    """Return whether no condition is false; none are, of no values but nulls."""
    return bool(pc.all(conditions, min_count=0).as_py())


def _millis(array: pa.Array, kind: pa.TimestampType) -> pa.Array:
    return array.cast(pa.timestamp("ms", kind.tz)).cast(kind)


def _nanos(array: pa.Array, kind: pa.TimestampType) -> pa.Array:
    micros = array.fill_null(0).to_numpy() // 1000
    return pa.array(micros, mask=array.is_null().to_numpy(zero_copy_only=False)).cast(kind)


def _uuids(octets: pa.Array, kind: pa.DataType) -> pa.Array:
    count = len(octets)
    if octets.null_count == count:
        return pa.nulls(count, kind)
    data = octets.fill_null(bytes(16)).cast(pa.binary(16))
    values = np.frombuffer(data.buffers()[1], np.uint8, 16 * count, 16 * data.offset)
    digits = DIGITS[np.stack([values >> 4, values & 15], axis=1).reshape(count, 32)]
    text = np.full((count, 36), ord("-"), np.uint8)
    text[:, PLACES] = digits
    valid = pa.array(octets.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]
    buffers = [valid, pa.py_buffer(np.ascontiguousarray(text))]
    fixed = pa.Array.from_buffers(pa.binary(36), count, buffers)
    return fixed.cast(pa.binary()).view(kind)


def _unscaled(octets: pa.Array, kind: pa.Decimal128Type) -> pa.Array:
    """Return decimals of integers with the highest byte first, in two's complement."""
    count = len(octets)
    if octets.null_count == count:
        return pa.nulls(count, kind)
    octets = octets.cast(pa.binary())
    if pc.max(pc.binary_length(octets)).as_py() > WIDTH:
        octets = pa.array(map(_without_sign, octets.to_pylist()), pa.binary())
    _, offsets, data = octets.buffers()
    ends = np.frombuffer(offsets, np.int32, count + 1, octets.offset * 4)
    begins, ends = ends[:-1], ends[1:]
    valid = octets.is_valid().to_numpy(zero_copy_only=False)
    begins, ends = begins[valid], ends[valid]
    lengths = ends - begins
    longest = int(lengths.max())
    if lengths.min() == 0 or longest > WIDTH:
        raise pa.ArrowInvalid("no bytes, or too many")
    numbers = np.frombuffer(data, np.uint8)
    # Bytes before the highest one are its sign.
    signs = np.where(numbers[begins] < 0x80, 0, 0xFF).astype(np.uint8)
    present = np.repeat(signs[:, np.newaxis], WIDTH, axis=1)
    for place in range(longest):
        has_byte = lengths > place
        present[has_byte, place] = numbers[ends[has_byte] - 1 - place]
    values = np.zeros((count, WIDTH), np.uint8)
    values[valid] = present
    bits = pa.array(valid).buffers()[1]
    array = pa.Array.from_buffers(kind, count, [bits, pa.py_buffer(values)])
    array.validate(full=True)
    return array


def _without_sign(octets: bytes | None) -> bytes | None:
    """Return an integer in no more bytes than it needs, of those above `WIDTH`."""
    if octets is None or len(octets) <= WIDTH:
        return octets
    most = len(octets) - WIDTH
    sign = b"\xff" if octets[most] > 0x7F else b"\0"
    return octets[most:] if octets[:most] == sign * most else octets


def _base64(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array(
        [None if text is None else from_base64(text) for text in texts.to_pylist()], kind
    )


def from_base64(text: str) -> bytes:
    """Return bytes that are written in base64.

    Raises:
        pa.ArrowInvalid: the text is no base64.
    """
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise pa.ArrowInvalid(text) from error


def _decimals(
    array: pa.Array, kind: pa.Decimal128Type, read: Callable[[bytes], Decimal | None], rounds: bool
) -> pa.Array:
    """Return decimals of numbers in JSON, or of texts of digits."""
    values = [None if raw is None else read(raw) for raw in array.to_pylist()]
    return pa.array([fit_decimal(value, kind, rounds) for value in values], kind)


def fit_decimal(value: Decimal | None, kind: pa.Decimal128Type, rounds: bool) -> Decimal | None:
    """Return a number with the scale of a type.

    Args:
        value: the number; None for null.
        kind: the type.
        rounds: whether it may be rounded: a half, away from zero.

    Raises:
        pa.ArrowInvalid: it has too many digits.
    """
    if value is None:
        return None
    if not value:
        return Decimal(0)
    if value.adjusted() > MOST_DIGITS:
        raise pa.ArrowInvalid("too large")
    if value.adjusted() < -MOST_DIGITS:
        if not rounds:
            raise pa.ArrowInvalid("too many decimals")
        return Decimal(0)
    unit = Decimal(1).scaleb(-kind.scale)
    rounded = value.quantize(unit, ROUND_HALF_UP, WIDE)
    if not rounds and rounded != value:
        raise pa.ArrowInvalid("too many decimals")
    if rounded.adjusted() >= kind.precision - kind.scale and rounded:
        raise pa.ArrowInvalid("too large")
    return rounded


def _json_number(raw: bytes) -> Decimal | None:
    text = _json_text(raw)
    if text is None:
        return None
    return read_number(text)


def read_number(text: str) -> Decimal:
    """Return the number that a text is.

    Raises:
        pa.ArrowInvalid: it is none, or has an exponent that no number has.
    """
    if not IS_NUMBER.fullmatch(text):
        raise pa.ArrowInvalid(text)
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise pa.ArrowInvalid(text) from error


def _json_text(raw: bytes) -> str | None:
    """Return the text of a number or a string in JSON; None for null."""
    if raw == b"null":
        return None
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str)
    return raw.decode()


def _singles(array: pa.Array, kind: pa.DataType) -> pa.Array:
    texts = [None if raw is None else _single(raw) for raw in array.to_pylist()]
    return pa.array(texts, pa.string()).cast(kind)


def _single(raw: bytes) -> str:
    text = raw.decode()
    if not text.startswith('"'):
        return "0" if text == "-0" else text  # an integer
    name = str(_json_text(raw))
    if name not in NAMED_FLOATS:
        raise pa.ArrowInvalid(name)
    return str(NAMED_FLOATS[name])


def _exact_number(raw: bytes) -> Decimal | None:
    text = _json_text(raw)
    # Nothing says whether a text of digits is a number, or one in base64.
    if text and raw.startswith(b'"') and IS_BASE64.fullmatch(text):
        raise pa.ArrowInvalid(text)
    return _json_number(raw)


def _connect_numbers(array: pa.Array, kind: pa.Decimal128Type) -> pa.Array:
    """Return decimals of Kafka Connect: bytes in base64, or numbers."""

    def read(raw: bytes) -> Decimal | None:
        if not raw.startswith(b'"'):
            return _json_number(raw)
        octets = from_base64(str(_json_text(raw)))
        if not 0 < len(octets) <= WIDTH:
            raise pa.ArrowInvalid("no bytes, or too many")
        return Decimal(int.from_bytes(octets, "big", signed=True)).scaleb(-kind.scale, WIDE)

    return _decimals(array, kind, read, rounds=False)


FORMS: dict[str, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    "": pa.Array.cast,
    JSON: pa.Array.cast,
    MILLIS: _millis,
    NANOS: _nanos,
    UUID_BYTES: _uuids,
    UNSCALED: _unscaled,
    DATE_TEXT: _dates,
    LOCAL_TEXT: _local_times,
    BASE64: _base64,
    NUMBER: partial(_decimals, read=_json_number, rounds=True),
    EXACT_NUMBER: partial(_decimals, read=_exact_number, rounds=False),
    CONNECT_NUMBER: _connect_numbers,
    SINGLE: _singles,
}
