"""Work on many files in separate processes."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def in_order(
    function: Callable[[Path], Result], files: Sequence[Path], workers: int
) -> Generator[Result]:
    """The results for all files in order, with only a few in memory at a time.

    ``function`` is module-level, or a partial of such a function; one worker is this process.
    """
    workers = min(workers, len(files))
    if workers <= 1:
        yield from map(function, files)
        return
    # A forked process would inherit FFmpeg's locks, but not the threads that release them.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["video.data"])  # whose import takes seconds
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for file in files:
                waiting.append(pool.submit(function, file))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _start() -> None:
    """Ignore Ctrl-C, which the parent also receives, and exit if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
