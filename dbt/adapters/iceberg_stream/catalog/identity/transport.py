"""Where secrets may be sent: over TLS or to this machine, and only to the host that was named."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

# An address with scheme and host, or an absolute path.
PLAIN_LOCATION = re.compile(r"(?:https?://[\w.:\[\]-]+(?:[/?#][^\\\s]*)?|/(?!/)[^\\\s]*)")
# Headers that hold no secret whatever their value.
PUBLIC_HEADERS = {
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "idempotency-key",
    "user-agent",
    "x-client-version",
    "x-iceberg-access-delegation",
}
DEFAULT_PORTS = {"http": 80, "https": 443}


def is_loopback(host: str | None) -> bool:
    """Return whether a host is this machine: `localhost`, or an address of 127.0.0.0/8 or ::1.

    Names are not looked up, because the answer of a name server may change.

    Args:
        host: the host's name or address, without a port.
    """
    name = str(host or "").lower().removeprefix("[").removesuffix("]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """Return whether nobody on the network can read what is sent to a URL.

    Args:
        url: the URL; it is not private if clients may parse it differently.
    """
    if "\\" in url or any(character.isspace() for character in url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" or is_loopback(parts.hostname)
    except ValueError:
        return False


def require_private(request: PreparedRequest) -> None:
    """Check that a request with a secret in its headers is not sent in plain text.

    Args:
        request: the request.

    Raises:
        requests.exceptions.InvalidURL: it would be.
    """
    from requests.exceptions import InvalidURL

    address = str(request.url)
    if not is_private(address) and {name.lower() for name in request.headers} - PUBLIC_HEADERS:
        raise InvalidURL(
            f"{_origin(address)} does not use TLS, so others could read the token. Use https://…, "
            "or set `allow_plaintext: true` in the profile if nobody else is in the network."
        )


def refuse_other_origin(response: Response, **_: Any) -> None:
    """Refuse a redirect to another scheme, host or port, as a response hook of `requests`.

    `requests` drops only the header `Authorization`, and sends other headers and bodies again.

    Args:
        response: the response.

    Raises:
        requests.exceptions.InvalidURL: it redirects to another origin.
    """
    from requests.exceptions import InvalidURL

    if not response.is_redirect:
        return
    location = response.headers["location"]
    target = urljoin(str(response.url), location)
    # Other spellings of addresses lead each client elsewhere.
    is_plain = PLAIN_LOCATION.fullmatch(location) is not None
    if not is_plain or _origin(target) != _origin(str(response.url)):
        raise InvalidURL(
            f"{_origin(str(response.url))} redirects to {_origin(target)}, which gets no secret "
            "of the profile. If that is the right address, set it in the profile."
        )


def _origin(url: str) -> str:
    """Return scheme, host and port of a URL, without its user."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return "an invalid address"
    return f"{parts.scheme}://{parts.hostname}:{port}"
