"""S3, STS and IAM by moto, as a process of its own that checks every signature."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import requests

from tests.servers.ports import free_port, wait_for

REGION = "eu-central-1"


@dataclass(frozen=True)
class S3:
    """A running server with its buckets, and the keys of a user who may do everything.

    Attributes:
        roles: ARNs by name: `client` may use the buckets, `powerless` may not.
    """

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    roles: dict[str, str]


@contextlib.contextmanager
def s3_server(folder: Path, *buckets: str) -> Iterator[S3]:
    """Run a server with these buckets whose log lies in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with open(folder / "s3.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(port, process, folder / "s3.log")
        yield _prepared(f"http://127.0.0.1:{port}", buckets)
    finally:
        process.kill()
        process.wait()


def _prepared(endpoint: str, buckets: tuple[str, ...]) -> S3:
    location = {"LocationConstraint": REGION}
    for bucket in buckets:
        s3 = _client("s3", endpoint)
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration=location)
    iam = _client("iam", endpoint)
    iam.create_user(UserName="owner")
    everything = _policy("*", Resource="*")
    iam.put_user_policy(UserName="owner", PolicyName="all", PolicyDocument=everything)
    key = iam.create_access_key(UserName="owner")["AccessKey"]
    roles = {}
    for name in ("client", "powerless"):
        trust = _policy("sts:AssumeRole", Principal={"AWS": "*"})
        role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]
        roles[name] = role["Arn"]
    s3_policy = _policy("s3:*", Resource="*")
    iam.put_role_policy(RoleName="client", PolicyName="s3", PolicyDocument=s3_policy)
    # From here on moto wants keys that it has given, and asks the policies.
    requests.post(f"{endpoint}/moto-api/reset-auth", data="0", timeout=10).raise_for_status()
    return S3(endpoint, key["AccessKeyId"], key["SecretAccessKey"], roles)


def _policy(action: str, **whom_or_what: Any) -> str:
    statement = {"Effect": "Allow", "Action": action, **whom_or_what}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def _client(service: str, endpoint: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )
