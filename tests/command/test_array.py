"""Array jobs: the cells that a plan lists, and the script of docs/examples that runs one of them.

The script is run without Slurm: what it starts and calls are stand-ins.
"""

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

from toy.program import AtOnce

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs/examples/array.sbatch"
# Notes its arguments, and works until it is told to stop, as the command line does: exit code 75.
COMMAND = """#!/bin/bash
trap 'exit 75' TERM
printf '%s\\n' "$@" >"arguments-$SLURM_ARRAY_TASK_ID"
[ "$SLURM_ARRAY_TASK_ID" = 2 ] || exit 3
while true; do sleep 0.05; done
"""
REQUEUE = '#!/bin/bash\necho "$@" >requeued\n'


def test_the_script_runs_the_task_s_cell_and_puts_it_back_when_it_was_stopped(
    tmp_path: Path,
) -> None:
    for name, text in (("reproduce.sh", COMMAND), ("bin/scontrol", REQUEUE)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "cells").write_text("--cell one\n--cell two --set 'a=b c'\n")

    def begin(task: int) -> subprocess.Popen[bytes]:
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        job = {"PATH": path, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(task)}
        words = ["bash", str(EXAMPLE), "cells", "--threads", "1"]
        return subprocess.Popen(words, cwd=tmp_path, env={**os.environ, **job})

    assert begin(1).wait(60) == 3
    assert not (tmp_path / "requeued").exists()
    stopped = begin(2)
    noted = tmp_path / "arguments-2"
    while not noted.exists() or "--no-download" not in noted.read_text():
        assert stopped.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)  # until the script itself listens to signals
    stopped.send_signal(signal.SIGTERM)  # as --signal=B:TERM does, to the script alone
    assert stopped.wait(60) == 0
    assert (tmp_path / "requeued").read_text() == "requeue 7_2\n"
    options = ["--threads", "1", "--jobs", "1", "--no-download"]
    assert noted.read_text().splitlines() == ["--cell", "two", "--set", "a=b c", *options]


def test_the_cells_of_a_plan_run_one_by_one_give_what_the_whole_command_gives(
    tmp_path: Path, at_once: AtOnce
) -> None:
    choice = ("toy", "toy", "--column", "left", "--row", "plain")
    own = ("compare", *choice, "--row", "plain:steps=4", "--seeds", "1")
    lines: list[str] = []
    for words in ((*choice, "--seeds", "0"), own):
        lines += at_once("plan", *words, "--cells")[0].splitlines()
    assert lines[0] == "--cell toy/toy/table-1/plain/left/seed-0"
    assert len(lines) == 2
    for line in lines:
        at_once(*shlex.split(line))
    for words in ((*choice, "--seeds", "0,1"), own):
        assert at_once("plan", *words, "--cells")[0] == ""
        at_once(*words, "--runs", "plain")
    files = [*(tmp_path / "plain").rglob("result.json")]
    assert len(files) == 3
    for file in files:
        ours = tmp_path / "runs" / file.relative_to(tmp_path / "plain")
        metrics = [json.loads(each.read_text())["metrics"] for each in (file, ours)]
        assert metrics[0] == metrics[1]
