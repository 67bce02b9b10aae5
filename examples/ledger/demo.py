"""Two months of a ledger: files, tags, branches, history, a second catalog, and clones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE / ".data" / "ledger"
COMMANDS = Path(sys.executable).parent
APRIL = ["--vars", "{month: 2026-04}"]
AUDIT = ["--vars", "{month: 2026-04, branch: audit, fee: -5}"]
BALANCES = "select account, balance from {{ ref('balances') }} order by account"
HISTORY = (
    "select account, balance, dbt_valid_to is null as is_current "
    "from {{ ref('balance_history') }} order by account, dbt_valid_from"
)
MOVE_MAIN = "call lake.system.fast_forward('ledger.{}', 'main', 'audit')"
FILES = (
    "select table_name, sum(record_count) as records from lake.information_schema.files "
    "where table_schema = 'ledger' group by table_name order by table_name"
)


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m\n", flush=True)


def run(command: str, *arguments: str) -> None:
    """Run `dbt` or `iceberg-stream` in the project."""
    shown = (f'"{argument}"' if " " in argument else argument for argument in arguments)
    print(f"$ {command} {' '.join(shown)}", flush=True)
    folders = ["--project-dir", str(PROJECT), "--profiles-dir", str(PROJECT)]
    subprocess.run([COMMANDS / command, *arguments, *folders], cwd=PROJECT, check=True)


def show(sql: str, *arguments: str) -> None:
    run("dbt", "--quiet", "show", "--limit", "20", "--inline", sql, *arguments)


def arrive(month: str) -> None:
    """Put the files of a month where the ledger reads them."""
    shutil.copytree(HERE / "landing" / month, PROJECT / "landing" / month)


def main() -> int:
    shutil.rmtree(HERE / ".data", ignore_errors=True)
    not_copied = shutil.ignore_patterns("landing", ".data", "demo.py")
    shutil.copytree(HERE, PROJECT, ignore=not_copied)
    profile = PROJECT / "profiles.yml"
    # One engine for all commands, which is stopped at the end.
    profile.write_text(
        profile.read_text().replace("threads: 2", "threads: 2\n      keep_alive: 120")
    )
    try:
        say("1. March is closed: the balances get a tag")
        arrive("2026-03")
        run("dbt", "build")
        say("2. April arrives: balances of now and of March, from one table")
        arrive("2026-04")
        run("dbt", "build", *APRIL)
        show("select * from {{ ref('since_march') }} order by account")
        show("select * from {{ ref('closings') }} order by month, account")
        say("3. Nothing new: only what reads files is built again")
        run("dbt", "build", *APRIL)
        run("iceberg-stream", "why", "balances")
        say("4. What if a booking cost five cents? On a branch, which readers do not see")
        run("dbt", "run", "--select", "bookings", "balances", *AUDIT)
        show(BALANCES)
        show(BALANCES, *AUDIT)
        say("5. Agreed: both tables show the branch")
        for table in ("bookings", "balances"):
            show(MOVE_MAIN.format(table))
        show(BALANCES)
        say("6. All versions of the balances, the one of the branch included")
        run("dbt", "snapshot")
        show(HISTORY)
        say("7. Copies to play with, on the same files")
        run(
            *("dbt", "clone", "--target", "sandbox", "--state", "target"),
            *("--target-path", "target_sandbox"),
        )
        run("iceberg-stream", "check", "archive.ledger.closings")
        show(FILES)
    finally:
        run("iceberg-stream", "stop")
    return 0


if __name__ == "__main__":
    sys.exit(main())
