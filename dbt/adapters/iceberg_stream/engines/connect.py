"""An existing Spark Connect server, such as a company's cluster."""

from __future__ import annotations

import socket
import ssl
import threading

from dbt.adapters.iceberg_stream.engines.settings import Endpoint, EngineError

PROBE_SECONDS = 5.0
# The opening of an HTTP/2 connection with empty settings (RFC 9113, section 3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HTTP2_SETTINGS = 4
TLS_ALERT = 0x15


class ConnectEngine:
    """Access to an existing Spark Connect server. Thread-safe.

    Spark's client tries for minutes to reach a server that uses another protocol. So the address
    is checked once before, which reports errors within seconds.

    Args:
        endpoint: the server's address.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._guard = threading.Lock()
        self._checked = False

    def prestart(self) -> None:
        """Do nothing: the server is running."""

    def endpoint(self) -> Endpoint:
        """Return the server's address, after a check of it.

        Raises:
            EngineError: the server does not answer, or uses another protocol.
        """
        with self._guard:
            if not self._checked:
                self._check()
                self._checked = True
        return self._endpoint

    def release(self) -> None:
        """Do nothing: other processes use the server."""

    def abandon(self) -> None:
        """Do nothing: other processes use the server."""

    def _check(self) -> None:
        where = f"{self._endpoint.host}:{self._endpoint.port}"
        try:
            with socket.create_connection(
                self._endpoint.address, timeout=PROBE_SECONDS
            ) as connection:
                if self._endpoint.tls:
                    self._require_tls(connection, where)
                else:
                    _require_plaintext(connection, where)
        except socket.gaierror as error:
            raise EngineError(
                f"The host of the Spark Connect server {where} is unknown ({error.strerror}). "
                "Check `host` in the profile."
            ) from error
        except OSError as error:
            raise EngineError(
                f"The Spark Connect server {where} does not answer ({error}). "
                "Check `host` and `port` in the profile, and that the server is running."
            ) from error

    def _require_tls(self, connection: socket.socket, where: str) -> None:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["h2"])
        try:
            context.wrap_socket(connection, server_hostname=self._endpoint.host).close()
        except ssl.SSLCertVerificationError as error:
            raise EngineError(
                f"The certificate of {where} is not valid: {error.verify_message}. Set "
                "SSL_CERT_FILE and GRPC_DEFAULT_SSL_ROOTS_FILE_PATH to the file of its certificate "
                "authority."
            ) from error
        except (ssl.SSLError, ConnectionResetError) as error:
            raise EngineError(
                f"{where} does not use TLS ({error}). Set `use_ssl: false`, or check `port`."
            ) from error


def _require_plaintext(connection: socket.socket, where: str) -> None:
    connection.sendall(PREFACE)
    try:
        response = connection.recv(9)
    except ConnectionResetError:
        response = b""
    if response[:1] == bytes([TLS_ALERT]) or not response:
        raise EngineError(
            f"{where} does not accept plaintext gRPC; it probably requires TLS. Set "
            "`use_ssl: true`."
        )
    if len(response) < 4 or response[3] != HTTP2_SETTINGS:
        raise EngineError(f"{where} is not a Spark Connect server. Check `port` in the profile.")
