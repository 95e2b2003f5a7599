"""The server that processes of cells are forked from: it has only imported their domain.

Forking from it is fast, and safe for threads, CUDA and renderers. It is started once
there is something to run: it outlives the command for a moment, with the output of it open.
"""

import multiprocessing
import signal
from multiprocessing import forkserver, resource_tracker

IGNORED = (signal.SIGINT, signal.SIGHUP)


def preloaded(domain: str) -> list[str]:
    """The modules that the server has imported before it forks cells of a domain."""
    of_domain = (f"{domain}.{module}" for module in ("domain", "train", "evaluation"))
    of_suite = (f"shared.command.{module}" for module in ("pool", "worker"))
    libraries = ("torch.utils.tensorboard", "scipy.linalg")
    first, last = "shared.command.preloading", "shared.command.preloaded"
    return [first, *of_domain, *of_suite, *libraries, last]


def start(domain: str) -> None:
    """Start the server if none runs, without waiting; it ignores the terminal's signals."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(preloaded(domain))
    resource_tracker.ensure_running()  # which would let the signals through while it starts
    # The server inherits them held back, and ignores them from preloading.py on. Were they ignored
    # here in the meantime, a Ctrl-C of this moment would be lost to the command, too.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
