"""Options of Kafka's clients, by librdkafka's names."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Options whose values are secret.
SECRET = re.compile(r"password|secret|jaas|key\.pem$|user\.info$|auth\.token$|token_command$")
OAUTHBEARER, OIDC = "OAUTHBEARER", "sasl.oauthbearer."


def secret_options(options: Mapping[str, str]) -> list[str]:
    """Return the names of the options whose values are secret.

    Args:
        options: the options of a Kafka client.
    """
    return [name for name in options if SECRET.search(name)]
