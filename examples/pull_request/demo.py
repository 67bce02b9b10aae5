"""Build a change of the shop beside the published tables, look at the difference, publish it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHOP, CHANGE, PROJECT = HERE.parent / "shop", HERE / "change", HERE / ".data" / "shop"
COMMANDS = Path(sys.executable).parent
BUILD = "pr-42"
# Created by earlier runs of the shop's own demo.
NOT_COPIED = shutil.ignore_patterns("lakehouse", "target", "logs", ".iceberg_stream")
REVENUE = "select sum(orders) as orders, sum(revenue) as revenue from shop.daily_revenue"


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m\n", flush=True)


def run(command: str, *arguments: str, build: str | None = None) -> None:
    """Run `dbt` or `iceberg-stream` in the project, in a build if one is given."""
    environment = {**os.environ, "SHOP_TODAY": "2026-04-30"}
    prefix = ""
    if build is not None:
        environment["ICEBERG_STREAM_BUILD"] = build
        prefix = f"ICEBERG_STREAM_BUILD={build} "
    print(f"$ {prefix}{command} {' '.join(shown(arguments))}", flush=True)
    folders = ["--project-dir", str(PROJECT), "--profiles-dir", str(PROJECT)]
    subprocess.run([COMMANDS / command, *arguments, *folders], env=environment, check=True)


def shown(arguments: Sequence[str]) -> list[str]:
    return [f'"{argument}"' if " " in argument else argument for argument in arguments]


def show_revenue() -> None:
    run("dbt", "--quiet", "show", "--inline", REVENUE)


def main() -> int:
    shutil.rmtree(HERE / ".data", ignore_errors=True)
    shutil.copytree(SHOP, PROJECT, ignore=NOT_COPIED)
    profile = PROJECT / "profiles.yml"
    # One engine for all commands, which is stopped at the end.
    profile.write_text(profile.read_text().rstrip() + "\n      keep_alive: 120\n")
    try:
        say("1. Production: the shop as it is")
        run("dbt", "--quiet", "build")
        show_revenue()
        say("2. The pull request counts no orders that are only placed; it builds on the side")
        shutil.copytree(CHANGE, PROJECT, dirs_exist_ok=True)
        run(
            "dbt", "build", "--select", "customers", "daily_revenue", "revenue_adds_up", build=BUILD
        )
        say("3. Readers still see the old tables")
        show_revenue()
        say("4. The difference, for a comment on the pull request")
        run("iceberg-stream", "diff", "--build", BUILD, "--format", "markdown", "--rows", "3")
        say("5. Merged: both tables change in one commit")
        run("iceberg-stream", "publish", BUILD)
        show_revenue()
    finally:
        run("iceberg-stream", "stop")
    return 0


if __name__ == "__main__":
    sys.exit(main())
