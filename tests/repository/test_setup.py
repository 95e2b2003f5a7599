"""What reproduce.sh does before anything runs, the lock of versions, and the wheel.

Installers are stood in for by scripts that note how they were called; nothing is downloaded.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import shared
from shared.command import reproduce

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
PACKAGES = ("shared", "graph", "rl", "text", "video", "vision")
INSTALL = "python -m pip install --no-compile --constraint {lock} --editable {home}[{extras}]"
# Which Python it is says its file's name: python3.13 is 3.13, python3 and a venv's python 3.11.
PYTHON = """#!{bash}
name=${{0##*/}}
case "$1 ${{2:-}}" in
  -c\\ *)
    minor=${{name#python3.}}
    [ "$minor" != "$name" ] || minor=11
    exec {python} -c "import sys; sys.version_info = (3, $minor, 9); $2" ;;
  --version*) echo "Python of $name" && exit ;;
  -m\\ pip) [ "$3" != config ] || exec cat "$FAKE/pip.conf" ;;
esac
echo "$name $*" >>"$FAKE/calls"
case "$1 ${{2:-}}" in
  -m\\ venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  -m\\ pip)
    [ ! -e "$FAKE/pip-fails" ] || {{ echo "ERROR: No matching distribution" && exit 1; }} ;;
  -P\\ -m) echo "command: $SUITE_COMMAND in $PWD" ;;
esac
"""
UV = """#!{bash}
echo "uv $* backend=${{UV_TORCH_BACKEND:-}}" >>"$FAKE/calls"
[ ! -e "$FAKE/uv-fails" ] || {{ echo "error: no solution" && exit 1; }}
"""


class Checkout:
    """A copy of what set-up reads, and a PATH with nothing but tools and stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "checkout"
        self.venv = self.home / ".venv"
        self.fake = folder / "fake"
        self.fake.mkdir()
        (self.home / "shared/command").mkdir(parents=True)
        line = "shared/command/reproduce.py"
        for name in ("reproduce.sh", "pyproject.toml", "requirements.lock", line):
            shutil.copyfile(ROOT / name, self.home / name)
        for tool in "bash cat cp dirname grep mkdir rm sed tail touch".split():
            (self.fake / tool).symlink_to(str(shutil.which(tool)))
        (self.fake / "pip.conf").touch()
        self.add("python3", PYTHON)

    def add(self, name: str, script: str) -> None:
        file = self.fake / name
        file.write_text(script.format(bash=shutil.which("bash"), python=sys.executable))
        file.chmod(0o755)

    def call(
        self, *arguments: str, code: int = 0, user: int | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", str(self.home / "reproduce.sh"), *arguments],
            env={"PATH": str(self.fake), "FAKE": str(self.fake), **variables},
            cwd="/",
            capture_output=True,
            text=True,
            user=user,
        )
        assert done.returncode == code, done.stderr
        return done

    def calls(self) -> list[str]:
        """What was called since the last time this was asked."""
        file = self.fake / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def install(self, extras: str) -> str:
        """How pip is called for some extras."""
        lock = self.home / "requirements.lock"
        return INSTALL.format(lock=lock, home=self.home, extras=extras)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_without_arguments_it_says_what_it_can_do_and_starts_nothing(checkout: Checkout) -> None:
    assert checkout.call(code=2).stderr == reproduce.USAGE
    assert checkout.call("--latest", code=2).stderr == reproduce.USAGE
    assert checkout.call("--help").stdout == reproduce.USAGE
    assert checkout.calls() == []
    assert not checkout.venv.exists()


def test_the_first_call_installs_the_lock_and_runs_where_the_user_stands(
    checkout: Checkout,
) -> None:
    done = checkout.call("graph", "mmcl", "--row", "two words")
    assert checkout.calls() == [
        f"python3 -m venv {checkout.venv}",
        checkout.install("graph"),
        "python -P -m shared graph mmcl --row two words",
    ]
    assert done.stdout == r"command: ./reproduce.sh graph mmcl --row two\ words in /" + "\n"
    assert f"setting up {checkout.venv} for graph by Python of python3" in done.stderr
    checkout.call("--latest", "text", "lmcl")  # without the lock, in a place of its own
    assert checkout.calls()[:2] == [
        f"python3 -m venv {checkout.home}/.venv-latest",
        f"python -m pip install --no-compile --editable {checkout.home}[text]",
    ]


def test_it_installs_again_when_versions_change_or_an_extra_is_lacking(checkout: Checkout) -> None:
    run = ["python -P -m shared graph mmcl"]
    checkout.call("graph", "mmcl")
    checkout.calls()
    assert checkout.call("graph", "mmcl").stderr == ""
    assert checkout.calls() == run
    stamp = checkout.venv / ".installed-graph"
    for name in ("pyproject.toml", "requirements.lock"):
        later = stamp.stat().st_mtime + 1
        os.utime(checkout.home / name, (later, later))
        checkout.call("graph", "mmcl")
        assert checkout.calls() == [checkout.install("graph"), *run]
        os.utime(checkout.home / name, (0, 0))
    for words, extras in (
        (("benchmark",), "graph,rl,text,video,vision,bench"),
        (("docs",), "docs"),
    ):
        checkout.call(*words)
        assert checkout.calls()[0] == checkout.install(extras)
    for words in (("report",), ("rl", "lmcl")):  # within a set that is installed
        checkout.call(*words)
        assert checkout.calls() == [f"python -P -m shared {' '.join(words)}"]


def test_an_environment_whose_python_is_out_of_reach_is_not_deleted(checkout: Checkout) -> None:
    """Other machines may have that Python, and runs at work in it."""
    checkout.call("report")
    (checkout.venv / "bin/python").unlink()
    (checkout.venv / "bin/python").symlink_to("/nowhere/bin/python3.11")
    assert str(checkout.venv) in checkout.call("report", code=2).stderr
    assert (checkout.venv / ".installed-core").exists()


def test_uv_installs_where_there_is_one_and_pip_where_it_alone_is_configured(
    checkout: Checkout,
) -> None:
    checkout.add("uv", UV)
    command = checkout.install("vision").replace(
        "python -m pip install --no-compile", f"uv pip install --python {checkout.venv}/bin/python"
    )
    checkout.call("vision", "lmcl", UV_TORCH_BACKEND="cpu")
    assert checkout.calls()[1] == f"{command} backend=cpu"
    shutil.rmtree(checkout.venv)
    (checkout.fake / "pip.conf").write_text("global.index-url='https://one/simple'\n")
    checkout.call("vision", "lmcl")
    assert checkout.calls()[1] == checkout.install("vision")
    shutil.rmtree(checkout.venv)
    (checkout.fake / "uv-fails").touch()  # then pip tries
    checkout.call("vision", "lmcl", UV_DEFAULT_INDEX="https://two/simple")
    assert checkout.calls()[1:3] == [f"{command} backend=auto", checkout.install("vision")]


def test_a_failed_installation_names_its_log_and_is_tried_again(checkout: Checkout) -> None:
    (checkout.fake / "pip-fails").touch()
    last = checkout.call("graph", "mmcl", code=2).stderr.splitlines()[-1]
    assert "ERROR: No matching distribution" in last
    assert f"{checkout.venv}/setup.log" in last
    assert not any("shared" in call for call in checkout.calls())
    (checkout.fake / "pip-fails").unlink()
    checkout.call("graph", "mmcl")
    assert checkout.calls() == [checkout.install("graph"), "python -P -m shared graph mmcl"]


def test_a_python_that_every_domain_is_built_for_comes_first(checkout: Checkout) -> None:
    checkout.add("python3.12", PYTHON)
    checkout.call("graph", "mmcl")
    assert checkout.calls()[0].startswith("python3.12 -m venv")
    shutil.rmtree(checkout.venv)
    checkout.add("python3.10", PYTHON)
    err = checkout.call("graph", "mmcl", code=2, PYTHON="python3.10").stderr
    assert "Python >= 3.11" in err
    checkout.add("python3.13", PYTHON)
    err = checkout.call("rl", "lmcl", code=2, PYTHON="python3.13").stderr
    assert "3.12" in err
    assert not any(" pip install" in call for call in checkout.calls())


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ([], ["-m", "not slow"]),
        (["--all", "-k", "two words"], ["--durations=40", "-k", "two words"]),
    ],
)
def test_tests_are_the_fast_ones_or_all(
    checkout: Checkout, words: list[str], chosen: list[str]
) -> None:
    checkout.call("graph", "mmcl")
    for tool in ("ruff", "mypy"):
        checkout.add(tool, f'#!{{bash}}\necho "{tool} $*" >>"$FAKE/calls"\n')
        shutil.move(checkout.fake / tool, checkout.venv / "bin" / tool)
    checkout.calls()
    checkout.call("test", *words)
    calls = [call for call in checkout.calls() if " -m pip " not in call]
    run = "python -m pytest --numprocesses logical --maxprocesses 8 --dist worksteal"
    assert calls == ["ruff check .", "ruff format --check .", "mypy ", " ".join([run, *chosen])]


def test_a_checkout_that_cannot_be_written_to_says_so() -> None:
    folder = Path(tempfile.mkdtemp())  # tmp_path is its owner's alone
    folder.chmod(0o755)
    checkout = Checkout(folder)
    user = None if os.geteuid() else 65534  # root may write anywhere
    checkout.home.chmod(0o555)
    try:
        err = checkout.call("graph", "mmcl", code=2, user=user).stderr
    finally:
        checkout.home.chmod(0o755)
        shutil.rmtree(folder)
    assert f"{checkout.home} cannot be written to" in err


# The lock and the wheel


def test_the_lock_pins_what_the_project_asks_for_and_names_no_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = {*project["dependencies"], *(one for extra in extras for one in extra)}
    lock = [line.split(";")[0].strip() for line in LOCK.read_text().splitlines() if line[0] != "#"]
    pins = [line for line in lock if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9._-]+==[0-9a-z.]+", pin) for pin in pins)
    pinned = dict(pin.split("==") for pin in pins)
    for requirement in map(Requirement, sorted(wanted)):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
    assert len(pinned) > 2 * len(wanted)  # what they need in turn, too
    assert "://" not in LOCK.read_text()


TYPED = """
# mypy: disallow-untyped-calls, disallow-subclassing-any
import torch
from shared import Objective, cosine, info_nce, large_batch, term, two_views

first, second = torch.randn(2, 8, 4)
criterion = Objective(term(info_nce, temperature=0.1)).build(dim=4)
reveal_type(criterion(two_views(first, second)))
reveal_type(criterion.of_views(first, second))
large_batch(torch.nn.Linear(4, 4), criterion, torch.randn(2, 8, 4), chunk=2)
info_nce(two_views(first, second), cosine(first, second), temprature=0.1)
"""


@pytest.mark.slow
def test_the_wheel_holds_everything_and_runs_outside_the_checkout(tmp_path: Path) -> None:
    """Built from a copy of the sources, without network."""
    for name in PACKAGES:
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / "source" / name, ignore=leave)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / "source" / name)
    site, mine = tmp_path / "site", tmp_path / "mine"
    mine.mkdir()

    def run(*words: str) -> str:
        done = subprocess.run(
            words,
            env={**os.environ, **dict.fromkeys(("PYTHONPATH", "MYPYPATH"), str(site))},
            cwd=mine,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    wheel = ("pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path))
    run(sys.executable, "-m", *wheel, str(tmp_path / "source"))
    (file,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(file).extractall(site)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (site / path.relative_to(ROOT)).exists()
    about = f"margins_in_contrastive_learning-{shared.__version__}.dist-info"
    assert {path.name for path in site.iterdir()} == {*PACKAGES, about}
    entry = (site / about / "entry_points.txt").read_text()
    assert "margins = shared.command.reproduce:main" in entry
    assert f"\nversion: {shared.__version__}\n" in (ROOT / "CITATION.cff").read_text()

    # In a history of someone else, whose commit it does not take.
    run("git", "init", "--quiet", str(tmp_path))
    who = ("-c", "user.name=A", "-c", "user.email=a@b")
    run("git", *who, "commit", "--quiet", "--allow-empty", "--message", "theirs")
    program = (
        "from shared.experiment.environment import commit; import graph.tables as t; "
        "print(t.__file__, t.TABLES['mmcl'][0].published.rows != {}, commit())"
    )
    out = run(sys.executable, "-c", program)
    assert out == f"{site}/graph/tables.py True {{'commit': 'unknown', 'dirty': True}}\n"
    words = ("shared", "plan", "graph", "mmcl", "--row", "GraphCL", "--column", "MUTAG")
    assert "20 of 20 cells to run" in run(sys.executable, "-m", *words)

    # Every domain is imported, with what its runs need, and one runs a table in an empty folder.
    parts = ("train", "evaluation", "export")
    modules = [f"{name}.{part}" for name in PACKAGES[1:] for part in parts]
    files_of = ", ".join(f"{module}.__file__" for module in modules)
    program = f"import {', '.join(modules)}; print({files_of})"
    files = run(sys.executable, "-c", program).split()
    assert files == [f"{site}/{module.replace('.', '/')}.py" for module in modules]
    program = "from shared.command.reproduce import main; raise SystemExit(main())"
    smoke = ("graph", "mmcl", "--tier", "smoke", "--row", "GraphCL")
    assert "GraphCL" in run(sys.executable, "-c", program, *smoke)
    assert len([*mine.glob("runs/**/result.json")]) == 1

    # A strict type checker knows the losses. With the options of this project, to which the script
    # adds what they lack, it need not read torch again.
    (mine / "script.py").write_text(TYPED)
    with suppress(FileNotFoundError):
        shutil.copytree(ROOT / ".mypy_cache", mine / "cache")
    check = "import sys; from mypy import api; print(api.run(sys.argv[1:])[0])"
    words = (f"--config-file={ROOT / 'pyproject.toml'}", "--cache-dir=cache", "script.py")
    lines = run(sys.executable, "-c", check, *words).splitlines()
    assert "tuple[torch._tensor.Tensor, dict[str, torch._tensor.Tensor]]" in lines[0]
    assert 'Revealed type is "torch._tensor.Tensor"' in lines[1]
    assert 'did you mean "temperature"?' in lines[2]
    assert lines[-2].startswith("Found 1 error")
