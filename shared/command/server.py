"""The server that processes of cells are forked from: it has only imported their domain.

Forking from it is fast, and safe for threads, CUDA and renderers. It is started once
there is something to run: it outlives the command for a moment, with the output of it open.
"""

import multiprocessing
import resource
import signal
import threading
from multiprocessing import forkserver

from shared.errors import UserError

SERVER_START = 300.0  # seconds, in which it has imported everything
ADDRESS_SPACE = 2 * 2**30  # bytes: the imports of a domain take up to 1.2 GB, and training more


def preloaded(domain: str) -> list[str]:
    """The modules that the server has imported before it forks cells of a domain."""
    of_domain = (f"{domain}.{module}" for module in ("domain", "train", "evaluation"))
    of_suite = (f"shared.command.{module}" for module in ("pool", "worker"))
    libraries = ("torch.utils.tensorboard", "scipy.linalg")
    first, last = "shared.command.preloading", "shared.command.preloaded"
    return [first, *of_domain, *of_suite, *libraries, last]


def _start(domain: str) -> None:
    """Start the server if none runs, without waiting; it ignores the terminal's signals."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(preloaded(domain))
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)
    }
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start_and_wait(domain: str) -> None:
    """Start the server if none runs, and wait until it forks.

    Raises UserError where there is too little address space, or it does not start in time.
    """
    limit = _address_space()
    if limit < ADDRESS_SPACE:
        raise UserError(
            f"ulimit -v allows {limit / 2**30:.1f} GB of address space, and a cell needs "
            f"{ADDRESS_SPACE / 2**30:.0f} GB or more; raise it: ulimit -v unlimited"
        )
    _start(domain)
    failed: list[Exception] = []

    def fork() -> None:
        try:
            process = multiprocessing.get_context("forkserver").Process(target=_nothing)
            process.start()
            process.join()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=fork, daemon=True)  # its call cannot be interrupted
    thread.start()
    thread.join(SERVER_START)
    if thread.is_alive() or failed:
        why = f"no answer in {SERVER_START:.0f} s"
        if failed:
            why = f"{type(failed[0]).__name__}: {failed[0]}"
        raise UserError(
            f"the process that cells are forked from does not start ({why}); it needs "
            f"{ADDRESS_SPACE / 2**30:.0f} GB of memory or address space: free some, or raise "
            f"ulimit -v"
        )


def _address_space() -> float:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _nothing() -> None:
    """The target of a process that only shows that processes can be forked."""
