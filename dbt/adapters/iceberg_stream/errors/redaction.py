"""Removes secrets from everything that is printed or logged.

A word too many is hidden rather than a secret shown: the patterns need no valid syntax, because
messages cut, quote and nest what they report.
"""

from __future__ import annotations

import re

HIDDEN = "…"
# A caller's statement of megabytes would occupy this process for minutes.
LONGEST = 20_000
LONGEST_SECRET = 1_000
# Storages whose locations have a bucket or container before `@`, and not a user.
_STORAGES = (
    "s3",
    "s3a",
    "s3n",
    "gs",
    "gcs",
    "oss",
    "abfs",
    "abfss",
    "wasb",
    "wasbs",
    "hdfs",
    "file",
)
# `//user:password@`; passwords may have slashes and other separators.
_USER_INFO = re.compile(
    r"(?P<before>(?:\b(?P<scheme>[a-z][a-z0-9+.-]{0,30}):)?//)(?P<user>[^\s'\"]{0,700})@(?!//)(?P<rest>[^\s'\"]*)"
    r"|(?P<oracle>\bthin:)[^\s'\"]{0,500}@",
    re.IGNORECASE,
)
# Names end with what they hold. `token_uri` and `token_file` are no secrets.
_KEY = r"(?:access|account|api|private|secret|shared|encryption|signing|sse|storage)[-_. ]?key"
_NAME = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secret|credential(?:s(?!:\s))?|signature|cookie|authorization"
    rf"|(?:access|auth|bearer|client|id|refresh|sas|security|server|session|csrf)?[-_.]?token"
    rf"|{_KEY}(?:[-_.]?(?:id|pem))?|(?:keystore|ssl)\.key|key\.pem|user\.info|jaas\.config"
    r"|(?:sas[-_.]?token|connection[-_.]?string|account[-_.]?key)[\w.-]{0,200})"
)
_WORD = rf"(?<![\w./-])(?:[\w.-]{{0,200}}?[\w.-])??{_NAME}"
_SCHEME = r"(?:(?:bearer|basic|digest|negotiate|aws4-hmac-sha256)\s+)?"
_QUOTED = (
    # A string, or one within a string, as JSON in JSON.
    r"\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.|'')*'?"
    r"|\\\"(?:[^\\\"]|\\\\\\\"|\\[^\"])*(?:\\\")?"
)
_ASSIGNED = re.compile(
    rf"(?P<name>{_WORD}\\?[\"']?\s*(?:=>|[:=])\s*)(?:{_QUOTED}|{_SCHEME}[^\s&;'\"]+)",
    re.IGNORECASE | re.DOTALL,
)
# SQL's `password 'x'` and `identified by 'x'`, and options of programs.
_WRITTEN = re.compile(
    rf"(?P<name>(?:(?<![\w./-])[\w.-]{{0,200}}?(?:password|secret|{_KEY})[\"'`]?"
    rf"|\bidentified by)\s+)(?:\"[^\"]*\"|'(?:[^']|'')*')"
    rf"|(?P<option>(?<![\w-])--?[\w.-]{{0,200}}?(?:{_NAME})[ =]){_SCHEME}(?:{_QUOTED}|[^\s'\"]+)"
    rf"|(?P<element><[\w:.-]{{0,200}}?{_NAME}>)[^<]+",
    re.IGNORECASE | re.DOTALL,
)
_IN_URL = re.compile(
    r"(?P<name>[?&;,][\w.-]{0,200}?(?:pass|pwd|secret|token|credential|signature|[-_.]?key|auth|sig)"
    r"[\w.-]{0,200}=)[^&;,\s'\")]+",
    re.IGNORECASE,
)
_BARE = re.compile(
    # Tokens after their scheme, JWTs, keys of AWS, Google, GitHub and in PEM.
    r"(?P<scheme>\b(?:bearer|basic)\s+)(?!tokens?\b|auth|realm\b)(?=[^\s'\",;]*[\d.=_+/-]|\S{16})"
    r"[^\s'\",;]{6,}"
    r"|\beyJ[\w-]{5,}(?:\.[\w-]*){1,4}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"
    r"|\bya29\.[\w.-]{10,}|\bAIza[\w-]{30,}|\bgh[pousr]_\w{20,}"
    r"|(?P<pem>-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)


def without_secrets(text: str) -> str:
    """Replace passwords, tokens, keys and the users of addresses in a text by an ellipsis.

    Args:
        text: of a message, a setting or an address.
    """
    cut = len(text) > LONGEST
    text = _USER_INFO.sub(_hide_user, _BARE.sub(_hide, text[:LONGEST]))
    for pattern in (_IN_URL, _ASSIGNED, _WRITTEN):
        text = pattern.sub(_hide, text)
    # The end may have a secret of which the cut has left a part only.
    return f"{text[:-LONGEST_SECRET]}{HIDDEN}" if cut else text


def _hide_user(match: re.Match[str]) -> str:
    is_storage = (match["scheme"] or "").lower() in _STORAGES
    if is_storage and ":" not in match["user"].partition("/")[0]:
        return match[0]
    if re.search(r"[?&;][\w.-]+=", match["user"] or ""):
        # The `@` may be in a password of the query, or the query in that of the user.
        return f"{match['before'] or match['oracle']}{HIDDEN}"
    return f"{match['before'] or match['oracle']}{HIDDEN}@{match['rest'] or ''}"


def _hide(match: re.Match[str]) -> str:
    """Return what is before the secret, which each pattern has as a named group."""
    return "".join(filter(None, match.groupdict().values())) + HIDDEN


def holds_secret(address: str) -> bool:
    """Return whether an address contains a secret, or a user, whose password may follow."""
    return without_secrets(address) != address
