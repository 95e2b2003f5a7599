"""How many faults in a module do its fast tests find? Faults are put in by mutmut, one at a time.

``python tests/mutants.py graph/train.py shared/svm.py`` prints for each module how many mutants
there are, how many were tried and how many some test rejected, and those that no test rejected.
mutmut (3.8.1 was tried) is no dependency of this project: ``uv pip install mutmut==3.8.1``.

A module's tests are those of ``TESTS``, else its own file, and the plain programs of its domain; a
training also meets what is tested of all trainings. Of more than ``--sample`` mutants as many are
drawn, by a seed, so that another day tries the same.
Left out by a rule are lines that only say something: ``raise``, notices, progress and texts.
``--changed COMMIT`` takes the modules of ``MODULES`` that have changed since.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What decides a number, in the order of docs/numerics.md.
MODULES = [
    *(f"graph/{name}.py" for name in ("train", "evaluation", "augmentation", "encoder", "data")),
    *(f"vision/{name}.py" for name in ("train", "evaluation", "features", "transfer")),
    *(f"vision/{name}.py" for name in ("augmentation", "encoder", "data", "image_sets")),
    *(f"vision/methods/{name}.py" for name in ("__init__", "base", "moco", "swav", "cmc")),
    *(f"text/{name}.py" for name in ("train", "evaluation", "encoder", "senteval")),
    *(f"text/{name}.py" for name in ("neighbours", "baselines", "tokens", "data")),
    *(f"video/{name}.py" for name in ("train", "evaluation", "augmentation", "encoder", "data")),
    *(f"rl/{name}.py" for name in ("train", "agent", "replay", "evaluation", "encoder")),
    *(f"rl/{name}.py" for name in ("environment", "simulator", "probe")),
    *(f"shared/{name}.py" for name in ("losses", "margins", "pairs", "penalties", "projection")),
    *(f"shared/{name}.py" for name in ("svm", "logistic", "pixels", "momentum", "distributed")),
]
CORE = [
    f"tests/core/test_{name}.py"
    for name in (
        *("pairs", "checks", "parity", "margins", "projection", "derivatives", "losses"),
        *("penalties", "svm"),
    )
]
FILES_OF_IMAGES = [
    f"tests/vision/test_{name}.py"
    for name in ("data", "transfer_data", "prepared", "own", "images")
]
# Tests of modules that have no file of their own, or more than that.
TESTS = {
    **dict.fromkeys([f"shared/{name}.py" for name in ("losses", "margins", "pairs")], CORE),
    **dict.fromkeys([f"shared/{name}.py" for name in ("penalties", "projection", "svm")], CORE),
    "shared/pixels.py": ["tests/core/test_pixels.py", "tests/vision/test_augmentation.py"],
    "graph/data.py": ["tests/graph/test_data.py", "tests/graph/test_own.py"],
    "graph/evaluation.py": ["tests/graph/test_evaluation.py", "tests/graph/test_own.py"],
    "graph/encoder.py": [
        f"tests/graph/test_{name}.py" for name in ("encoder", "own", "init", "export")
    ],
    "rl/environment.py": ["tests/rl/test_environment.py", "tests/rl/test_own.py"],
    "rl/simulator.py": ["tests/rl/test_environment.py"],
    "vision/evaluation.py": ["tests/vision/test_evaluation.py", "tests/vision/test_transfer.py"],
    "vision/features.py": [
        f"tests/vision/test_{name}.py" for name in ("evaluation", "transfer", "prepared")
    ],
    "vision/encoder.py": [
        f"tests/vision/test_{name}.py" for name in ("encoder", "export", "methods")
    ],
    **dict.fromkeys(["vision/data.py", "vision/image_sets.py"], FILES_OF_IMAGES),
    "vision/methods/__init__.py": [
        f"tests/vision/test_{name}.py" for name in ("methods", "encoder", "export")
    ],
    "vision/methods/base.py": [
        *(f"tests/vision/test_{name}.py" for name in ("methods", "export")),
        "tests/core/test_chunks.py",
    ],
    "vision/methods/moco.py": ["tests/vision/test_methods.py"],
    "vision/methods/swav.py": ["tests/vision/test_methods.py"],
    "vision/methods/cmc.py": ["tests/vision/test_methods.py"],
    "text/baselines.py": ["tests/text/test_neighbours.py"],
    "text/encoder.py": [f"tests/text/test_{name}.py" for name in ("encoder", "saved", "export")],
    "text/evaluation.py": ["tests/text/test_evaluation.py", "tests/text/test_official.py"],
    "text/senteval.py": ["tests/text/test_official.py", "tests/text/test_evaluation.py"],
    "video/augmentation.py": [
        f"tests/video/test_{name}.py" for name in ("augmentation", "loading", "pytorchvideo")
    ],
    "video/encoder.py": [
        *(f"tests/video/test_{name}.py" for name in ("encoder", "export", "evaluation")),
        "tests/core/test_chunks.py",
    ],
}
# Tests of a training that stand elsewhere.
OF_TRAINING = {
    "vision": ["tests/vision/test_store.py", "tests/vision/test_trivial.py"],
    "text": ["tests/text/test_neighbours.py"],
}
OF_ALL_TRAINING = [
    *(f"tests/core/test_{name}.py" for name in ("chunks", "capture")),
    *("tests/experiment/test_watch.py", "tests/domains/test_contracts.py"),
]
SAYS_ONLY = [r"^\s*raise\b", r"\bnotice\(", r"\.progress\(", r"\bafter\(", r'^\s*f?"']
DIFFS = """
import sys
from mutmut.mutation.diff_apply import find_mutant, get_diff_for_mutant
for key in sys.argv[1:]:
    print(" ", key.rpartition(".")[2])
    for line in get_diff_for_mutant(key, path=find_mutant(key).path).splitlines():
        if line[:1] in ("+", "-") and line[:3] not in ("+++", "---"):
            print("   ", line)
"""
# As pytest reports them; what times out is found, too.
KILLED = {1, 3, 24, 36, 152, 255, -24, -9, -6, -11}
SURVIVED, UNTESTED = {0}, {5, 33}


def tests_of(module: str) -> list[str]:
    """The files with a module's fast tests."""
    home, name = module.removesuffix(".py").split("/", 1)
    folder = "tests/core" if home == "shared" else f"tests/{home}"
    own = TESTS.get(module, [f"{folder}/test_{name}.py"])
    if name == "train":
        own = [*own, f"{folder}/test_own.py", f"{folder}/test_init.py"]
        own += [*OF_TRAINING.get(home, []), *OF_ALL_TRAINING]
    plain = [] if home == "shared" else [f"{folder}/test_plain.py"]
    return [file for file in (*own, *plain) if (ROOT / file).exists()]


def copied(folder: Path, module: str, tests: list[str]) -> None:
    """The working tree below a folder, with the tool's settings for one module."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, folder / file)
    home = module.split("/")[0]
    others = sorted({file.parts[0] for file in files} - {home, "tests", "pyproject.toml"})
    settings = {
        "source_paths": [home],
        "only_mutate": [module],
        "also_copy": others,
        "pytest_add_cli_args": ["-n0", "-m", "not slow", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": tests,
        "do_not_mutate_patterns": SAYS_ONLY,
        "use_git_change_detection": False,
        "timeout_constant": 20.0,
        "timeout_multiplier": 3.0,
        # Neither renderers nor several threads survive a fork, and caches hide what would fill
        # them: no test has run in the process that is forked.
        "process_isolation": "forkserver",
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    with (folder / "pyproject.toml").open("a") as stream:
        stream.write("\n".join(["\n[tool.mutmut]", *lines, ""]))


def mutmut(folder: Path, *words: str, seconds: float) -> str:
    """The output of a call; of one that takes longer, nothing."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mutmut", *words],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout + done.stderr


def tried(module: str, sample: int, seed: int, minutes: float, children: int, show: bool) -> None:
    """Print what became of a module's mutants."""
    tests = tests_of(module)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder, module, tests)
        meta = folder / "mutants" / f"{module}.meta"
        # Nothing is of this name: the mutants are made, and the tests timed, and none is tried.
        output = mutmut(folder, "run", "--max-children", "1", "none", seconds=900)
        if not meta.exists():
            print(f"{module} | no mutants were made: {output.strip().splitlines()[-1:]}")
            return
        names = sorted(json.loads(meta.read_text())["exit_code_by_key"])
        drawn = names
        if len(names) > sample:
            drawn = sorted(random.Random(seed).sample(names, sample))
        words = ["run", "--max-children", str(children), *drawn]
        output = mutmut(folder, *words, seconds=60 * minutes)
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        known = {key: codes[key] for key in drawn if codes[key] is not None}
        killed = [key for key, code in known.items() if code in KILLED]
        untested = [key for key, code in known.items() if code in UNTESTED]
        left = [key for key, code in known.items() if code in SURVIVED]
        others = len(known) - len(killed) - len(untested) - len(left)
        share = f"{100 * len(killed) / len(known):.1f}%" if known else "-"
        print(
            f"{module} | {len(names)} mutants | {len(known)} tried | {len(killed)} killed | "
            f"{share} | {len(untested)} in functions without a test | {others} undecided",
            flush=True,
        )
        if not known:
            print("\n".join(output.strip().splitlines()[-8:]))
        if show and (shown := [*left, *untested]):
            # A call of the tool for each would take seconds to parse the module again.
            words = [sys.executable, "-c", DIFFS, *shown]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
            print(done.stdout or done.stderr, end="")


def main() -> None:
    """Try the modules that are named, or that have changed."""
    parser = argparse.ArgumentParser(description="Faults that a module's fast tests find.")
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--changed", metavar="COMMIT", help="those that have changed since")
    parser.add_argument("--sample", type=int, default=200, help="mutants of a module; default: 200")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=15, help="of a module; default: 15")
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quiet", action="store_true", help="do not list the survivors")
    options = parser.parse_args()
    modules = options.modules
    if options.changed:
        words = ["git", "diff", "--name-only", options.changed, "--", *MODULES]
        found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        modules = [*modules, *found.stdout.split()]
    for module in modules:
        numbers = options.sample, options.seed, options.minutes, options.children
        tried(module, *numbers, show=not options.quiet)


if __name__ == "__main__":
    main()
