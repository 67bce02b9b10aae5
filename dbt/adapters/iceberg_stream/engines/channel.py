"""The connection to a Spark Connect server, for both of a session's clients."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from dbt.adapters.iceberg_stream.engines.settings import Endpoint

# As Spark's client.
MOST_MESSAGE_BYTES = 128 * 1024 * 1024


def open_channel(endpoint: Endpoint, options: Mapping[str, int]) -> grpc.Channel:
    """Return a channel to a server, without connecting to it yet.

    Args:
        endpoint: the server.
        options: options of gRPC.
    """
    arguments = [
        ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
        *options.items(),
    ]
    if not endpoint.tls and not endpoint.token:
        return grpc.insecure_channel(endpoint.target, arguments)
    is_local = not endpoint.tls and endpoint.is_local
    credentials = grpc.local_channel_credentials() if is_local else grpc.ssl_channel_credentials()
    if endpoint.token:
        token = grpc.access_token_call_credentials(endpoint.token)
        credentials = grpc.composite_channel_credentials(credentials, token)
    return grpc.secure_channel(endpoint.target, credentials, arguments)
