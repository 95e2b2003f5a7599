"""When a claim was committed with its rows, and which of them had been run by then: from history.

Pages do not depend on a clone's history; the answers stand with the claims' data, and here they are
found again where the history is whole.
"""

import gzip
import json
import subprocess
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shared.command.cells import DOMAINS, every_table
from shared.experiment.config import slug

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("no", "one", "both")  # of a pair's rows had been run
Row = tuple[str, str, str]  # tier, address of the table, row


def git(*words: str, stdin: bytes = b"") -> bytes:
    return subprocess.run(
        ["git", *words], cwd=ROOT, input=stdin, capture_output=True, check=True
    ).stdout


def versions(*paths: str) -> Iterator[tuple[float, bytes]]:
    """Time of the commit and content of every version of files, the oldest first."""
    log = git(
        "log", "--reverse", "--raw", "--no-abbrev", "--no-renames", "--format=@%ct", "--", *paths
    )
    time, blobs = 0.0, {}
    for text in log.decode().splitlines():
        if text.startswith("@"):
            time = float(text[1:])
        elif (text.startswith(":") and "records" in text) or text.endswith("claims.toml"):
            blobs.setdefault(text.split()[3], time)
    blobs.pop("0" * 40, None)  # a file that is deleted
    contents = git("cat-file", "--batch", stdin="\n".join(blobs).encode())
    for blob, time in blobs.items():
        head, _, rest = contents.partition(b"\n")
        name, _, size = head.decode().split()
        assert name == blob
        yield time, rest[: int(size)]
        contents = rest[int(size) + 1 :]


def first_runs(contents: Iterator[bytes]) -> dict[Row, float]:
    """When the first run of each row began."""
    first: dict[Row, float] = {}
    for content in contents:
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        for record in map(json.loads, text.splitlines()):
            parts = record["address"].split("/")
            tier = parts.pop(0) if parts[0] == "short" else "paper"
            row = (tier, "/".join(parts[:3]), parts[3])
            end = datetime.fromisoformat(record["result"]["finished"]).timestamp()
            start = end - float(record["result"]["seconds"])
            first[row] = min(start, first.get(row, start))
    return first


def commits_of_pairs() -> dict[tuple[str, str, str, str], float]:
    """When each claim was first committed with a table and a pair of its rows."""
    found: dict[tuple[str, str, str, str], float] = {}
    for domain in DOMAINS:
        for time, content in versions(f"{domain}/published/claims.toml"):
            for claim in tomllib.loads(content.decode())["claim"]:
                for each in claim["comparisons"]:
                    for table in each["tables"]:
                        for method, baseline in each["pairs"]:
                            key = (claim["id"], f"{domain}/{table}", method, baseline)
                            found.setdefault(key, time)
    return found


def known(pairs: list[tuple[Row, Row, float]], first: dict[Row, float]) -> str:
    """Which rows had been run when the pairs were committed."""
    counts = {sum(first[row] < time for row in (one, other)) for one, other, time in pairs}
    words = [WORDS[count] for count in sorted(counts)]
    if words == ["no"]:
        return "before any run of its rows"
    return f"after the runs of {' or '.join(words)} {'rows' if words[-1] == 'both' else 'row'}"


@pytest.mark.slow
def test_claims_say_whether_they_were_committed_before_their_runs() -> None:
    if git("rev-parse", "--is-shallow-repository").strip() == b"true":
        pytest.skip("needs the whole history")
    committed = commits_of_pairs()
    ever = first_runs(content for _, content in versions("results"))
    now = first_runs(
        file.read_bytes() for file in sorted((ROOT / "results").rglob("*.records.jsonl"))
    )
    claims = {claim.id: claim for table in every_table() for claim in table.claims}
    rows: list[dict[str, Any]] = json.loads((ROOT / "results/claims.json").read_text())[
        "comparisons"
    ]
    pairs: dict[str, list[tuple[Row, Row, float]]] = {}
    for row in rows:
        key = (row["claim"], row["table"], row["method"], row["baseline"])
        if not row["column"] and key in committed:  # else beside, with a tuned baseline
            one, other = ((row["tier"], row["table"], slug(row[n])) for n in ("method", "baseline"))
            pairs.setdefault(row["claim"], []).append((one, other, committed[key]))
    assert len(pairs) > 40
    for name, some in pairs.items():
        date = datetime.fromtimestamp(max(time for *_, time in some), UTC).date()
        expected = f"{date}, {known(some, now)}"
        expected += " †" * (known(some, now) != known(some, ever))
        assert claims[name].declared == expected, name
