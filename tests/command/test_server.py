"""The server that processes of cells are forked from."""

import os
import signal
import subprocess
import sys
from multiprocessing import forkserver

import pytest

from shared.command import server


def test_an_interruption_while_the_server_starts_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(forkserver, "ensure_running", interrupt)
    monkeypatch.setattr(server, "preloaded", lambda domain: [])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            server.start("graph")
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.slow
def test_the_server_itself_ignores_the_terminal() -> None:
    program = """
import os, signal, sys
import shared.command.preloading
os.kill(os.getpid(), signal.SIGINT)
os.kill(os.getpid(), signal.SIGHUP)
print("goes on")
"""

    def held_back() -> None:  # as the server inherits them, with one that came meanwhile
        signal.pthread_sigmask(signal.SIG_BLOCK, server.IGNORED)
        os.kill(os.getpid(), signal.SIGINT)

    done = subprocess.run(
        [sys.executable, "-c", program], preexec_fn=held_back, capture_output=True, text=True
    )
    assert done.stdout == "goes on\n", done.stderr
