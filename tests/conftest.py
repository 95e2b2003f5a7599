import os

# One thread, for processes that tests start as well: the tests' matrices are small, and as many
# tests run side by side as there are cores. Set before the libraries that read it are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTHONFAULTHANDLER", "1")  # one that crashes says where
# Asked for its code path, MKL measures the clock for a second in each process; so runs do not ask.
os.environ.setdefault("MKL_VERBOSE", "0")

import gc
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import chdir
from ctypes.util import find_library
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType

import pytest
import torch
from filelock import FileLock

import shared
from shared.command.devices import why_none
from shared.command.pool import cores
from shared.command.server import preloaded
from shared.experiment.compat import make_torchvision_importable

if torch.cuda.is_available():  # before cuBLAS is used: deterministic algorithms need it
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
gc.disable()  # until all tests are collected: nearly all that is made till then stays
torch.set_num_threads(1)
make_torchvision_importable()  # a test file may import it before the package that does this
# Whichever test starts the server of processes, those of later tests need not import torch.
forkserver.set_forkserver_preload(preloaded("toy"))

# Looked for apart from rl's own search, whose mistakes it would else excuse.
NO_RENDERER = sys.platform == "linux" and not any(map(find_library, ("EGL", "OSMesa")))
if NO_RENDERER:
    os.environ["MUJOCO_GL"] = "off"  # else DM Control takes a display that is not there, and aborts


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skips what draws frames where nothing can, and DM Control where it is not built."""
    try:
        return (yield)
    except Exception as error:
        if sys.version_info >= (3, 13) and "No module named 'dm_control'" in str(error):
            pytest.skip("needs DM Control, which is not built for Python 3.13")
        if NO_RENDERER and ("MUJOCO_GL=off" in str(error) or "renderer off" in str(error)):
            pytest.skip("needs a renderer: EGL or OSMesa")
        raise


pytest_runtest_setup = pytest_runtest_call  # fixtures draw, too


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One per core, and one more with the slow tests, which wait for what they have started."""
    return cores() + (not config.option.markexpr)


# On a GPU the cheapest proof comes first, and whole runs last.
FIRST = ("test_devices.py", "test_agreement.py", "test_capture.py", "test_train.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips ``cuda`` without a GPU; ``-m cuda`` needs one, and is sorted by cost."""
    if not torch.cuda.is_available():
        if config.option.markexpr == "cuda" and not config.option.collectonly:
            pytest.exit(f"torch can use no GPU here ({why_none()})", returncode=2)
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
    if config.option.markexpr == "cuda":
        order = [*FIRST, "", "test_gpu.py"]
        items.sort(key=lambda item: order.index(item.path.name if item.path.name in order else ""))


def pytest_collection_finish() -> None:
    """From here on the garbage collector leaves what collecting has made alone.

    Thousands of tests and all libraries lie there; some libraries collect at every call.
    """
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Every reason to skip once, with the number of tests; on a GPU what to paste into an issue."""
    if config.option.markexpr == "cuda":
        from tests.stages.gpu_summary import summary

        terminalreporter.write_line("")
        for line in summary(terminalreporter.stats):
            terminalreporter.write_line(line)
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Takes back the threads that a command has set: last bits go by them."""
    yield
    torch.set_num_threads(1)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deterministic algorithms alone, as ``--deterministic`` has them."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="session")
def core() -> ModuleType:
    """The loss core; the check by mutation runs tests that ask for it on mutated copies."""
    return shared


@pytest.fixture(scope="session")
def suite_data() -> Path:
    """The folder with the real data sets; the test is skipped where there is none."""
    folder = os.environ.get("SUITE_DATA")
    if not folder:
        pytest.skip("needs real data: set SUITE_DATA to the folder that holds them")
    path = Path(folder)
    if not path.is_dir():
        pytest.skip(f"needs real data: SUITE_DATA={folder} is no folder")
    return path


FilledOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def filled_once(tmp_path_factory: pytest.TempPathFactory) -> FilledOnce:
    """Gives a folder, by its name, that one of pytest's processes has filled for all to read."""

    def filled_once(name: str, fill: Callable[[Path], object]) -> Path:
        base = tmp_path_factory.getbasetemp()
        base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        folder, filled = base / name, base / f"{name}.filled"
        with FileLock(base / f"{name}.lock"):
            if not filled.exists():
                shutil.rmtree(folder, ignore_errors=True)  # what a failed filling has left
                folder.mkdir()
                fill(folder)
                filled.touch()
        return folder

    return filled_once


@pytest.fixture(scope="session")
def built_data(filled_once: FilledOnce) -> Path:
    """A data root that tests share: clips, frames and tokens are built there once.

    For tests of what is done with them; those of how they are built take a folder of their own.
    """
    return filled_once("data", lambda folder: None)


@pytest.fixture(scope="session")
def left_by_processes(filled_once: FilledOnce) -> Path:
    """Where 1, 2 and 4 processes have left their results."""
    from tests.core.test_distributed import leave_results

    return filled_once("processes", leave_results)


@pytest.fixture(scope="session")
def done(filled_once: FilledOnce) -> Path:
    """A folder in which ``toy toy`` has run to its end."""
    from toy.program import call

    return filled_once("toy", lambda folder: call(folder, "toy", "toy"))


@pytest.fixture
def at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """The command line with the toy domain, in this process, in ``tmp_path`` or another folder.

    A command of its own takes seconds to import torch, and its first cell as many again: it is for
    what signals and limits are about, and for one run from end to end.
    """
    from shared.command import cells, reproduce

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(cells, "DOMAINS", (*cells.DOMAINS, "toy"))

    def call(*arguments: str, code: int = 0, folder: Path = Path(".")) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["./reproduce.sh", *arguments])
        with chdir(folder):
            assert reproduce.main(arguments) == code
        return tuple(capsys.readouterr())

    return call


@pytest.fixture
def new_server() -> None:
    """Cells are forked of a server that imports their domain, not of what other tests have left."""
    forkserver._forkserver._stop()


@pytest.fixture(scope="module")
def modules_server() -> None:
    """One such server for the tests of a module on one domain, which takes seconds to start."""
    forkserver._forkserver._stop()


@pytest.fixture
def losses(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file with the loss of a test module, under a name that no other test has imported."""
    file = tmp_path / f"losses_{abs(hash(request.node.nodeid))}.py"
    file.write_text(request.module.LOSS)
    before = list(sys.path)
    yield file
    sys.path[:] = before
    sys.modules.pop(file.stem, None)
