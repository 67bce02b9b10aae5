"""Commits that a server executes once, however often it receives them (REST specification).

A server that returns `idempotency-key-lifetime` with its configuration stores its final response
to a request with an `Idempotency-Key`, and repeats it for a request with the same key.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from requests import ConnectionError, Response, Timeout
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    wait_random_exponential,
)

HEADER = "Idempotency-Key"
LIFETIME = "idempotency-key-lifetime"
ATTEMPTS = 5
# HTTP status codes after which the request may have been executed.
UNKNOWN = (500, 502, 503, 504)


def stores_responses(response: Response) -> bool:
    """Return whether a response is the configuration of a server that repeats its responses.

    Args:
        response: any response of a REST catalog.
    """
    if not response.ok or not response.url.partition("?")[0].endswith("/v1/config"):
        return False
    return bool(response.json().get(LIFETIME))


def send_once(send: Callable[[Mapping[str, str]], Response]) -> Response:
    """Send a request that the server executes once; again, while its outcome is unknown.

    Args:
        send: sends the request with additional headers.

    Returns:
        The last response.

    Raises:
        requests.RequestException: the server did not answer.
    """
    headers = {HEADER: str(uuid7())}
    retrying = Retrying(
        retry=retry_if_exception_type((ConnectionError, Timeout))
        | retry_if_result(lambda response: response.status_code in UNKNOWN),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.5, max=8),
        retry_error_callback=_last_outcome,
    )
    return retrying(send, headers)


def _last_outcome(state: RetryCallState) -> Any:
    assert state.outcome is not None, "the request was sent"
    return state.outcome.result()


def uuid7() -> uuid.UUID:
    """Return a new UUID that begins with the time (RFC 9562, section 5.7)."""
    milliseconds = int(time.time() * 1000)
    bits = milliseconds << 80 | 7 << 76 | secrets.randbits(12) << 64
    return uuid.UUID(int=bits | 0b10 << 62 | secrets.randbits(62))
