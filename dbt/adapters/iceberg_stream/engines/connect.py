"""A Spark Connect server that is there already: a company's cluster."""

from __future__ import annotations

import socket
import ssl
import threading

from dbt.adapters.iceberg_stream.engines.settings import Endpoint, EngineError

PROBE_SECONDS = 5.0
LOCAL = "localhost"
# The opening of an HTTP/2 connection with empty settings (RFC 9113, section 3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HTTP2_SETTINGS = 4
TLS_ALERT = 0x15


class ConnectEngine:
    """This process's access to a server of somebody else. Thread-safe.

    Spark's client tries for minutes to reach a server that speaks something else. So the server
    is looked at before, once, and what is wrong is said within seconds.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._guard = threading.Lock()
        self._looked = False

    def prestart(self) -> None:
        """Nothing to start."""

    def endpoint(self) -> Endpoint:
        with self._guard:
            if not self._looked:
                self._look()
                self._looked = True
        return self._endpoint

    def release(self) -> None:
        """Nothing to stop: the server is not ours."""

    def abandon(self) -> None:
        """Nothing to stop: the server is not ours."""

    def _look(self) -> None:
        where = f"{self._endpoint.host}:{self._endpoint.port}"
        try:
            with socket.create_connection(
                (self._endpoint.host, self._endpoint.port), timeout=PROBE_SECONDS
            ) as connection:
                if self._endpoint.tls:
                    self._require_tls(connection, where)
                else:
                    _require_plaintext(connection, where)
        except socket.gaierror as error:
            raise EngineError(
                f"The Spark Connect server {where} is not known ({error.strerror}). "
                "Check `host` in the profile."
            ) from error
        except OSError as error:
            raise EngineError(
                f"The Spark Connect server {where} does not answer ({error}). "
                "Check `host` and `port` in the profile, and that the server runs."
            ) from error

    def _require_tls(self, connection: socket.socket, where: str) -> None:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["h2"])
        try:
            context.wrap_socket(connection, server_hostname=self._endpoint.host).close()
        except ssl.SSLCertVerificationError as error:
            raise EngineError(
                f"The certificate of {where} cannot be trusted: {error.verify_message}. "
                "Set SSL_CERT_FILE and GRPC_DEFAULT_SSL_ROOTS_FILE_PATH to the authority's file."
            ) from error
        except (ssl.SSLError, ConnectionResetError) as error:
            raise EngineError(
                f"{where} does not speak TLS ({error}). Set `use_ssl: false`, or check `port`."
            ) from error


def _require_plaintext(connection: socket.socket, where: str) -> None:
    connection.sendall(PREFACE)
    try:
        answer = connection.recv(9)
    except ConnectionResetError:
        answer = b""
    if answer[:1] == bytes([TLS_ALERT]) or not answer:
        raise EngineError(
            f"{where} does not speak plaintext gRPC: it seems to want TLS. Set `use_ssl: true`."
        )
    if len(answer) < 4 or answer[3] != HTTP2_SETTINGS:
        raise EngineError(f"{where} is no Spark Connect server. Check `port` in the profile.")
