"""What reproduce.sh does before anything runs, the lock of versions, and the wheel.

Installers are stood in for by scripts that note how they were called; nothing is downloaded.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import shared
from shared.command import reproduce
from shared.experiment.environment import LOCK, lock_hash

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("shared", "graph", "rl", "text", "video", "vision")
PIP = "-m pip install --disable-pip-version-check"
INSTALL = f"{PIP} --no-compile"
# Which Python it is says its file's name: python3.13 is 3.13, python3 and a venv's python 3.11.
PYTHON = """#!{bash}
name=${{0##*/}}
case "$1 ${{2:-}}" in
  -c\\ *)
    minor=${{name#python3.}}
    [ "$minor" != "$name" ] || minor=11
    exec {python} -c "import sys; sys.version_info = (3, $minor, 9); $2" ;;
  --version*) echo "Python of $name" && exit ;;
  -m\\ pip)
    [ "$3" != config ] || exec cat "$FAKE/pip.conf"
    [ "${{*: -1}}" != uv ] || [ -e "$FAKE/uv-to-install" ] || exit 1 ;;
  -m\\ compileall) echo "$*" >"$FAKE/compiled" && exit ;;
esac
echo "$name $*" >>"$FAKE/calls"
case "$1 ${{2:-}}" in
  -m\\ venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  -m\\ pip)
    for what in "$@"; do :; done # the last word
    [ "$what" != uv ] || cp "$FAKE/uv-to-install" "${{0%/*}}/uv"
    echo "WARNING: noise"
    echo "Collecting rich==1.0"
    echo "  Downloading rich-1.0-py3-none-any.whl (2 MB)"
    [ ! -e "$FAKE/pip-fails" ] ||
      {{ echo "ERROR: No matching distribution" && cat "$FAKE/pip-fails" && exit 1; }} ;;
  -m\\ shared) echo "command: $SUITE_COMMAND" && echo "${{SUITE_FROM:-}}" >"$FAKE/from" ;;
esac
"""
UV = """#!{bash}
echo "uv $* backend=${{UV_TORCH_BACKEND:-}}" >>"$FAKE/calls"
for name in $(compgen -e UV_); do echo "$name=${{!name}}"; done >"$FAKE/uv-env"
if [ "$1" = venv ]; then
  for target in "$@"; do :; done # the last word
  mkdir -p "$target/bin" && cp "$FAKE/python3" "$target/bin/python"
fi
[ -z "${{UV_TORCH_BACKEND:-}}" ] || [ ! -e "$FAKE/no-torch-index" ] || exit 2
[ "$1" != pip ] || [ ! -e "$FAKE/uv-fails" ] || {{ echo "error: no solution" && exit 1; }}
echo "Resolved 49 packages in 1s"
"""


class Checkout:
    """A copy of what set-up reads, and a PATH with nothing but tools and stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "checkout"
        self.fake = folder / "fake"
        self.fake.mkdir()
        (self.home / "shared/command").mkdir(parents=True)
        line = "shared/command/reproduce.py"
        for name in ("reproduce.sh", "pyproject.toml", "requirements.lock", line):
            shutil.copyfile(ROOT / name, self.home / name)
        for tool in "bash cat cp dirname grep mkdir rm sed tail tee touch uname".split():
            (self.fake / tool).symlink_to(str(shutil.which(tool)))
        (self.fake / "pip.conf").touch()
        self.add("python3", PYTHON)
        self.add("nvidia-smi", "#!{bash}")

    def add(self, name: str, script: str) -> None:
        file = self.fake / name
        file.write_text(script.format(bash=shutil.which("bash"), python=sys.executable))
        file.chmod(0o755)

    def call(
        self,
        *arguments: str,
        code: int = 0,
        user: int | None = None,
        cwd: str | Path = "/",
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", str(self.home / "reproduce.sh"), *arguments],
            env={"PATH": str(self.fake), "FAKE": str(self.fake), **variables},
            cwd=cwd,
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


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_without_arguments_it_says_what_it_can_do_and_starts_nothing(checkout: Checkout) -> None:
    assert checkout.call(code=2).stderr == reproduce.USAGE
    assert checkout.call("--latest", code=2).stderr == reproduce.USAGE
    assert checkout.call("--help").stdout == reproduce.USAGE
    assert checkout.calls() == []
    assert not (checkout.home / ".venv").exists()


def test_the_first_call_installs_the_lock_and_says_so(checkout: Checkout) -> None:
    venv = checkout.home / ".venv"
    done = checkout.call("graph", "mmcl", "--row", "two words")
    assert checkout.calls() == [
        f"python3 -m venv {venv}",
        f"python {INSTALL} --constraint requirements.lock --editable .[graph]",
        "python -m shared graph mmcl --row two words",
    ]
    assert done.stdout == r"command: ./reproduce.sh graph mmcl --row two\ words" + "\n"
    first, second, *rest = done.stderr.splitlines()
    what = "for graph: Python of python3, versions of requirements.lock"
    assert first == f"setting up {venv} {what}"
    assert second.startswith("to download: up to 105 MB, and torch: 200 MB for CPUs, 2700 MB with")
    assert second.endswith("(by pip)")
    assert re.fullmatch(r" +\d+ s  \[0 of 1\] Collecting rich==1.0", rest[0])
    assert re.fullmatch(r"set up in \d+ s", rest[-1])
    assert "WARNING" not in done.stderr
    assert "WARNING: noise" in (venv / "setup.log").read_text()
    *words, rest, site = (checkout.fake / "compiled").read_text().split()
    assert words == ["-m", "compileall", "-q", "-j", "0", "-x"]
    assert site == f"{venv}/lib/python*/site-packages"
    for file, left in (("transformers/models/bert.py", True), ("torch/nn/init.py", False)):
        assert bool(re.search(rest, f"/tests/venv/site-packages/{file}")) == left


def test_a_second_domain_does_not_ask_for_torch_again(checkout: Checkout) -> None:
    checkout.call("graph", "mmcl")
    (checkout.home / ".venv/lib/python3.11/site-packages/torch").mkdir(parents=True)
    _, second, *_ = checkout.call("text", "lmcl").stderr.splitlines()
    assert second == "to download: up to 145 MB (by pip)"


def test_it_installs_again_when_versions_change_and_only_then(checkout: Checkout) -> None:
    run = ["python -m shared graph mmcl"]
    installed = [f"python {INSTALL} --constraint requirements.lock --editable .[graph]", *run]
    checkout.call("graph", "mmcl")
    assert checkout.calls()[1:] == installed
    assert checkout.call("graph", "mmcl").stderr == ""
    assert checkout.calls() == run
    stamp = checkout.home / ".venv" / ".installed-graph"
    for name in ("pyproject.toml", "requirements.lock"):
        later = stamp.stat().st_mtime + 1
        os.utime(checkout.home / name, (later, later))
        checkout.call("graph", "mmcl")
        assert checkout.calls() == installed
        os.utime(checkout.home / name, (0, 0))
    checkout.call("rl", "lmcl")
    assert checkout.calls()[0].endswith("--constraint requirements.lock --editable .[rl]")


def test_extras_within_an_installed_set_are_not_installed_again(checkout: Checkout) -> None:
    checkout.call("benchmark")
    larger = checkout.calls()[1].rpartition("[")[2].rstrip("]")
    for words in (("graph", "mmcl"), ("report",), ("rl", "lmcl")):
        assert checkout.call(*words).stderr == ""
        assert checkout.calls() == [f"python -m shared {' '.join(words)}"]
    checkout.call("docs")  # one that it lacks
    assert checkout.calls()[0].endswith(" --editable .[docs]")
    checkout.call("--latest", "report")  # in a place of its own
    assert checkout.calls()[1] == f"python {INSTALL} --editable ."
    for stamp in (f".installed-{larger}", ".installed-docs"):
        os.utime(checkout.home / ".venv" / stamp, (0, 0))
    checkout.call("report")
    assert checkout.calls()[0].endswith("--constraint requirements.lock --editable .")


def test_paths_are_told_from_where_the_user_stands(checkout: Checkout, tmp_path: Path) -> None:
    checkout.call("graph", "mmcl", cwd=tmp_path)
    assert (checkout.fake / "from").read_text() == f"{tmp_path}\n"
    checkout.call("graph", "mmcl", cwd=checkout.home)
    assert (checkout.fake / "from").read_text() == "\n"


def test_an_environment_whose_python_is_out_of_reach_is_not_deleted(checkout: Checkout) -> None:
    """Other machines may have that Python, and runs at work in it."""
    checkout.call("report")
    venv = checkout.home / ".venv"
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to("/nowhere/bin/python3.11")
    (venv / "pyvenv.cfg").write_text("home = /nowhere/bin\nversion = 3.11.9\n")
    checkout.calls()
    assert checkout.call("report", code=2).stderr == (
        f"error: {venv} is of a Python that is not found here (/nowhere/bin); other machines may "
        f"be using it: delete {venv} if none does, else make that Python available or use a copy "
        f"of the checkout\n"
    )
    assert (venv / ".installed-core").exists()
    (venv / "bin/python").unlink()  # as an aborted set-up leaves it
    checkout.call("report")
    assert checkout.calls()[0] == f"python3 -m venv {venv}"


def test_latest_leaves_the_lock_out_in_a_place_of_its_own(checkout: Checkout) -> None:
    done = checkout.call("--latest", "text", "lmcl")
    assert checkout.calls() == [
        f"python3 -m venv {checkout.home}/.venv-latest",
        f"python {INSTALL} --editable .[text]",
        "python -m shared text lmcl",
    ]
    assert done.stdout == "command: ./reproduce.sh --latest text lmcl\n"
    assert "versions of today" in done.stderr
    assert not (checkout.home / ".venv").exists()


def test_uv_installs_where_there_is_one(checkout: Checkout) -> None:
    checkout.add("uv", UV)
    done = checkout.call("vision", "lmcl")
    venv = checkout.home / ".venv"
    command = f"uv pip install --python {venv}/bin/python"
    command += " --constraint requirements.lock --editable .[vision]"
    made = f"python3 -m venv {venv}"
    run = "python -m shared vision lmcl"
    dry = f"{command} --dry-run backend=auto"
    assert checkout.calls() == [made, dry, f"{command} backend=auto", run]
    assert "Resolved 49 packages" in done.stderr
    assert "(by uv)" in done.stderr

    shutil.rmtree(venv)
    (checkout.fake / "no-torch-index").touch()
    done = checkout.call("vision", "lmcl")
    assert checkout.calls() == [made, dry, f"{command} backend=", run]
    assert done.stderr.count("torch's build for this hardware cannot be looked up") == 1

    shutil.rmtree(venv)
    (checkout.fake / "no-torch-index").unlink()
    checkout.call("vision", "lmcl", UV_TORCH_BACKEND="cpu")
    assert f"{command} backend=cpu" in checkout.calls()


def test_without_uv_pip_installs_one(checkout: Checkout) -> None:
    checkout.add("uv-to-install", UV)
    checkout.call("graph", "mmcl")
    made, first, dry, second, _ = checkout.calls()
    assert made == f"python3 -m venv {checkout.home}/.venv"
    assert first == f"python {PIP} uv"
    assert dry.startswith("uv pip install")
    assert second.endswith("--editable .[graph] backend=auto")


def test_pip_installs_where_uv_cannot(checkout: Checkout) -> None:
    checkout.add("uv", UV)
    (checkout.fake / "uv-fails").touch()
    done = checkout.call("graph", "mmcl")
    assert (
        f"python {INSTALL} --constraint requirements.lock --editable .[graph]" in checkout.calls()
    )
    log = checkout.home / ".venv" / "setup.log"
    assert f"uv could not install it (see {log}); pip tries\n" in done.stderr
    assert "error: no solution" in log.read_text()


def test_uv_takes_what_pip_is_configured_with(checkout: Checkout) -> None:
    """What comes later in pip's order; an index of one's own decides on the build of torch."""
    checkout.add("uv", UV)
    (checkout.fake / "pip.conf").write_text(
        ":env:.find-links='/wheels'\n"
        "global.extra-index-url='\\nhttps://one/simple\\nhttps://two/simple'\n"
        "global.find-links='/not/these /nor/these'\n"
        "global.timeout='60'\n"
        "install.constraint='/etc/constraints.txt'\n"
        "list.format='json'\n"
    )
    checkout.call("graph", "mmcl")
    _, installed, _ = checkout.calls()
    assert installed.endswith(".[graph] backend=")
    assert (checkout.fake / "uv-env").read_text().splitlines() == [
        "UV_CONSTRAINT=/etc/constraints.txt",
        "UV_FIND_LINKS=/wheels",
        "UV_INDEX=https://one/simple https://two/simple",
        "UV_INDEX_STRATEGY=unsafe-best-match",
    ]


def test_variables_of_uv_come_before_the_configuration_of_pip(checkout: Checkout) -> None:
    checkout.add("uv", UV)
    (checkout.fake / "pip.conf").write_text("global.index-url='https://one/simple'\n")
    checkout.call("graph", "mmcl", UV_DEFAULT_INDEX="https://two/simple")
    assert (checkout.fake / "uv-env").read_text().splitlines() == [
        "UV_DEFAULT_INDEX=https://two/simple",
        "UV_TORCH_BACKEND=auto",
    ]


def test_pip_installs_where_it_is_configured_with_what_uv_lacks(checkout: Checkout) -> None:
    checkout.add("uv", UV)
    (checkout.fake / "pip.conf").write_text("global.no-index='true'\n")
    checkout.call("graph", "mmcl")
    called = "\n".join(checkout.calls())
    assert PIP in called
    assert "uv pip install" not in called


def test_a_failed_installation_names_its_log_and_is_tried_again(checkout: Checkout) -> None:
    (checkout.fake / "pip-fails").touch()
    last = checkout.call("graph", "mmcl", code=2).stderr.splitlines()[-1]
    log = checkout.home / ".venv" / "setup.log"
    why = "the installation failed (ERROR: No matching distribution)"
    assert last.startswith(f"error: {why}; all that was said: {log}")
    assert not any("shared" in call for call in checkout.calls())
    (checkout.fake / "pip-fails").unlink()
    checkout.call("graph", "mmcl")
    assert [PIP in call for call in checkout.calls()] == [True, False]


def test_a_python_that_every_domain_is_built_for_comes_first(checkout: Checkout) -> None:
    (checkout.fake / "python3").rename(checkout.fake / "python3.13")
    checkout.call("graph", "mmcl")
    assert checkout.calls()[0].startswith("python3.13 -m venv")
    shutil.rmtree(checkout.home / ".venv")
    checkout.add("python3.12", PYTHON)
    checkout.call("graph", "mmcl")
    assert checkout.calls()[0].startswith("python3.12 -m venv")
    shutil.rmtree(checkout.home / ".venv")
    checkout.call("graph", "mmcl", PYTHON="python3.13")
    assert checkout.calls()[0].startswith("python3.13 -m venv")
    shutil.rmtree(checkout.home / ".venv")
    checkout.add("python3.10", PYTHON)
    err = checkout.call("graph", "mmcl", code=2, PYTHON="python3.10").stderr
    assert err.startswith("error: Python >= 3.11 is needed, and python3.10 is not")
    assert err.count("\n") == 1


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Checkout) -> None:
    checkout.call("graph", "mmcl")
    (checkout.home / ".venv" / "bin" / "python").unlink()
    (checkout.home / ".venv" / "of-the-old-python").touch()
    checkout.calls()
    checkout.call("graph", "mmcl")
    assert checkout.calls()[0] == f"python3 -m venv {checkout.home}/.venv"
    assert not (checkout.home / ".venv" / "of-the-old-python").exists()


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
        shutil.move(checkout.fake / tool, checkout.home / ".venv" / "bin" / tool)
    checkout.calls()
    checkout.call("test", *words)
    calls = [call for call in checkout.calls() if " -m pip " not in call]
    run = "python -m pytest --numprocesses logical --maxprocesses 8 --dist worksteal"
    assert calls == ["ruff check .", "ruff format --check .", "mypy ", " ".join([run, *chosen])]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can read: tmp_path is its owner's alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_checkout_that_cannot_be_written_to_says_so(open_folder: Path) -> None:
    checkout = Checkout(open_folder)
    user = None if os.geteuid() else 65534  # root may write anywhere
    checkout.home.chmod(0o555)
    try:
        done = checkout.call("graph", "mmcl", code=2, user=user)
    finally:
        checkout.home.chmod(0o755)
    assert done.stderr == (
        f"error: {checkout.home} cannot be written to (Permission denied), and the first call sets "
        "up .venv there; copy it to a folder of your own and call its reproduce.sh\n"
    )


@pytest.mark.parametrize(
    ("word", "what"),
    [("docs", "the site is built there"), ("test", "tests and linters keep caches there")],
)
def test_what_writes_into_a_checkout_that_is_set_up_says_that_it_cannot(
    open_folder: Path, word: str, what: str
) -> None:
    checkout = Checkout(open_folder)
    checkout.call(word, code=127 if word == "test" else 0)  # there are no linters
    user = None if os.geteuid() else 65534
    checkout.home.chmod(0o555)
    try:
        done = checkout.call(word, code=2, user=user)
    finally:
        checkout.home.chmod(0o755)
    assert done.stderr == (
        f"error: {checkout.home} cannot be written to, and {what}; copy the checkout to a folder "
        "of your own and call its reproduce.sh\n"
    )


# ---- the lock -----------------------------------------------------------------------------------


def test_the_nightly_summary_lists_runs_and_keeps_the_failed_ones(tmp_path: Path) -> None:
    for name, file, content in (
        ("a", "result.json", {"seconds": 2.25}),
        ("b", "failure.json", {"why": "failed: x | y"}),
        ("c", "checkpoint.pt", {}),
    ):
        folder = tmp_path / "runs/graph/atlas" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / file).write_text(json.dumps(content))
    script = [sys.executable, str(ROOT / ".ci/summary"), "runs"]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[2:] == [
        "| graph/atlas/a | done | 2.2 |",
        "| graph/atlas/b | failed: x \\| y |  |",
        "| graph/atlas/c | interrupted |  |",
    ]
    kept = {file.parent.name for file in (tmp_path / "failed-runs").rglob("config.json")}
    assert kept == {"b", "c"}


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


def test_the_hash_of_the_lock_counts_where_it_is_what_is_installed(tmp_path: Path) -> None:
    def of(text: str) -> str | None:
        lock = tmp_path / "requirements.lock"
        lock.write_text(text)
        found = lock_hash(lock)
        assert found in (None, hashlib.sha256(text.encode()).hexdigest())
        return found

    here = metadata.version("numpy")
    torch = metadata.version("torch").split("+")[0]
    assert of(
        f"# head\nnumpy=={here}\n    # via scipy\ntorch=={torch}\nnot-installed==1 ; x == 'y'"
    )
    assert of(f"numpy==0.1 ; python_full_version < '3'\nnumpy=={here} ; python_full_version >= '3'")
    assert of("numpy==0.1\n") is None
    assert of(f"numpy=={here}\ntorch==0.1\n") is None
    assert lock_hash(tmp_path / "nothing.lock") is None


# ---- the wheel ----------------------------------------------------------------------------------

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


def test_rl_is_refused_on_a_python_that_its_simulator_is_not_built_for(checkout: Checkout) -> None:
    (checkout.fake / "python3").rename(checkout.fake / "python3.13")
    err = checkout.call("rl", "lmcl", code=2).stderr
    assert "error: rl needs Python 3.11 or 3.12" in err
    assert "set PYTHON" in err
    assert not any(" pip install" in call for call in checkout.calls())


def test_the_options_that_the_script_looks_for_are_the_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    looked = set(re.findall(r'\*" (--[a-z]+)', (ROOT / "reproduce.sh").read_text()))
    assert "--rerun" in looked
    for verb in ("run", "verify"):
        with pytest.raises(SystemExit, match="0"):
            reproduce.VERBS[verb](["--help"])
    there = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert looked - there - {"--co", "--collect"} == set()  # the last two are pytest's
