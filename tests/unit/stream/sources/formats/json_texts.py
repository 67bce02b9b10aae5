"""Random values of JSON, by the type of their column: what producers write, and what they may."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

Text = Callable[[random.Random], str]

NUMBERS = ("NaN", "Infinity", "-Infinity", "Inf", "-Inf", "-NaN", "+INF", '"NaN"', '"-INF"', '""')
OTHERS = ("null", "true", "[]", "{}", '"null"', '""', '" "', "1.0", "-0")
OFFSETS = ("", "Z", "+02:00", "-0330", "+14:00", "-00:00")
ODD_OFFSETS = (
    *("+02", "+18:00", "-18:00", "+18:01", "-19:00", "+2:00", "+02:60", "+02:0", " Z", "z", "UTC"),
    *(" UTC", "Europe/Berlin", " America/New_York", "[UTC]", "Z[UTC]", "EST", "+02:00:00"),
)
ODD_TIMES = ("24:00:00", "23:59:60", "10:11", "10", "1:2:3", "10:60:00", "101112", "10:11:")


def digits(chance: random.Random, most: int) -> str:
    return "".join(chance.choices("0123456789", k=chance.randint(1, most)))


def decimal(chance: random.Random) -> str:
    """A number with two digits before the point, as number or text."""
    whole = f"{chance.choice(['', '-'])}{chance.randint(1, 99)}"
    number = whole + chance.choice(["", f".{digits(chance, 2)}", ".005", f".{digits(chance, 15)}"])
    return chance.choice([number, number, f'"{number}"', f"{whole}.5e-0{chance.randint(0, 9)}"])


def odd_number(chance: random.Random) -> str:
    if chance.random() < 0.1:
        return chance.choice([*NUMBERS, *OTHERS])
    whole = chance.choice(["0", digits(chance, 3), str(chance.randint(1, 10**45))])
    begins = ("", f".{'0' * chance.randint(0, 40)}", f".{digits(chance, 20)}")
    fraction = chance.choice(["", ".5", *(begin + digits(chance, 4) for begin in begins[1:])])
    exponent = chance.choice(["", "", f"{digits(chance, 1)}", digits(chance, 3), "00000" + whole])
    if exponent:
        exponent = chance.choice("eE") + chance.choice(["", "-", "-", "+"]) + exponent
    number = chance.choice(["", "-"]) + (whole.lstrip("0") or "0") + fraction + exponent
    if chance.random() < 0.8:
        return number
    texts = [number, f"+{number}", f" {number}", f"0{number}", f"{number}.", f"1,{number}"]
    return f'"{chance.choice(texts)}"'


def day(chance: random.Random) -> str:
    year = chance.choice([2026, 2024, 1999, 1969, 1600, 1, 9999])
    return f"{year:04}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"


def local_time(chance: random.Random) -> str:
    time = ":".join(f"{chance.randint(0, most):02}" for most in (23, 59, 59))
    return day(chance) + chance.choice(["T", " "]) + time


def timestamp_ntz(chance: random.Random) -> str:
    time = local_time(chance)
    return f'"{chance.choice([time, time[:-3], day(chance), f"{time}.{digits(chance, 9)}"])}"'


def timestamp(chance: random.Random) -> str:
    time = local_time(chance) + chance.choice(["", f".{digits(chance, 9)}"])
    return f'"{chance.choice([time + chance.choice(OFFSETS), day(chance)])}"'


def date(chance: random.Random) -> str:
    return chance.choice([f'"{day(chance)}"', f'"{day(chance)}"', timestamp(chance)])


def odd_time(chance: random.Random) -> str:
    if chance.random() < 0.1:
        return chance.choice([*OTHERS, "1", "-1", "1700000000000", '"1"', '"now"', '"20261126"'])
    years = ["2026", "0000", "9999", "1582", "10000", "999", "-2026", "+2026", "٢026"]
    days = ["-02-29", "-02-30", "-13-01", "-00-10", "-10-00", "-1-1", "-10-32", "1010", ""]
    fractions = ["", ".", f".{digits(chance, 13)}", ",131", ".9999999"]
    # One part at a time is odd: several seldom make a time.
    time = local_time(chance)
    parts = [time[:4], time[4:10], time[10], time[11:], "", chance.choice(OFFSETS)]
    odd = [years, days, ["t", "", "_", "T "], ODD_TIMES, fractions, ODD_OFFSETS]
    place = chance.randrange(len(parts))
    parts[place] = chance.choice(odd[place])
    text = "".join(parts)
    return f'"{chance.choice([text, text, text, f" {text}", f"{text} ", f"{text}x", parts[0]])}"'


def one_of(*texts: str) -> Text:
    return lambda chance: chance.choice(texts)


# Values that producers write, and others.
ORDINARY: Mapping[str, Text] = {
    "tinyint": one_of("0", "-128", "127"),
    "smallint": one_of("0", "-32768", "32767"),
    "int": one_of("0", "-1", "2147483647"),
    "bigint": one_of("0", "-1", "9223372036854775807"),
    "float": one_of("0", "-0.0", "0.1", "16777217", "1.0000000596046448", "1e-29", "3.5e38"),
    "double": one_of("0", "-0.0", "0.1", "1e300", "9007199254740993"),
    "string": one_of('""', '"a"', '"é\\n\\u0000"', '"e-40"', '"a-0"', '"Inf"'),
    "boolean": one_of("true", "false"),
    "decimal(4,2)": decimal,
    "decimal(19,17)": decimal,
    "decimal(38,9)": decimal,
    "decimal(38,0)": decimal,
    "date": date,
    "timestamp": timestamp,
    "timestamp_ntz": timestamp_ntz,
}
ODD: Mapping[str, Text] = {
    kind: odd_time if kind.startswith(("date", "time")) else odd_number
    for kind in (*ORDINARY, "decimal(19,19)", "decimal(38,38)")
    if kind not in ("string", "boolean")
}


def record(chance: random.Random, members: Mapping[str, Text]) -> str:
    """An object with most of the members, in any order, and sometimes with another one."""
    texts = [
        f'"{name}": {text(chance) if chance.random() < 0.9 else "null"}'
        for name, text in members.items()
        if chance.random() < 0.9
    ]
    texts += ['"more": {"id": [1, {"x": null}]}'] * (chance.random() < 0.1)
    chance.shuffle(texts)
    return f"{{{', '.join(texts)}}}"


def array(items: Text) -> Text:
    """An array of up to three items."""
    return lambda chance: f"[{', '.join(items(chance) for _ in range(chance.randint(0, 3)))}]"


def nullable(text: Text, others: Sequence[str] = ("null",), share: float = 0.1) -> Text:
    """A value, or one of others."""
    return lambda chance: chance.choice(others) if chance.random() < share else text(chance)
