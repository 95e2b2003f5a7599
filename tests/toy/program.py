"""The command line with the toy domain alone, as a process: for what signals and limits do."""

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AtOnce = Callable[..., tuple[str, str]]  # what the fixture at_once gives


def start(
    folder: Path, *arguments: str, module: tuple[str, ...] = ("toy",)
) -> subprocess.Popen[str]:
    """The command at work in a folder, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", *module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def call(
    folder: Path, *arguments: str, code: int = 0, module: tuple[str, ...] = ("toy",)
) -> tuple[str, str]:
    """What a command that has ended with this code has printed."""
    process = start(folder, *arguments, module=module)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err
    return out, err


def on_two_processes(
    folder: Path, *arguments: str, code: int = 0, prepare: Callable[[], None] | None = None
) -> str:
    """What the command has printed on two processes with torchrun's variables.

    They are forked of the server that cells are forked from: torchrun's own each take seconds to
    import torch, and so does it. Both end with this code, after preparing themselves so.
    """
    from shared.command.server import preloaded

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preloaded("toy"))
    both = [
        context.Process(target=_one_of_two, args=(place, port, folder, arguments, prepare))
        for place in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(300)
    printed = (folder / "printed").read_text()
    assert [process.exitcode for process in both] == [code, code], printed
    assert "Traceback" not in printed
    return printed


def _one_of_two(
    place: int,
    port: int,
    folder: Path,
    arguments: Sequence[str],
    prepare: Callable[[], None] | None,
) -> None:
    from shared.command import cells, reproduce

    os.chdir(folder)
    with open("printed", "a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), str(place))
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
    os.environ.update(ranks | sizes, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), COLUMNS="120")
    cells.DOMAINS = ("toy",)
    sys.argv = ["toy", *arguments]
    if prepare is not None:
        prepare()
    sys.exit(reproduce.main(arguments))
