import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch
import toy.train
from rich.console import Console
from toy.program import AtOnce, start
from toy.tables import TABLES, run_of

from shared.command import cells, reproduce, running, worker
from shared.command.plan import trains
from shared.command.pool import Pool, jobs_of
from shared.experiment.checkout import ROOT, of_checkout
from shared.experiment.published import load_notes, with_claims
from shared.experiment.run import Run
from tests.stages.errors import error_of

LEAVES = 1 + next(
    number
    for number, line in enumerate(Path(toy.train.__file__).read_text().splitlines())
    if "sys.exit(3)" in line
)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_a_table_runs_reports_and_is_not_run_again(done: Path, at_once: AtOnce) -> None:
    before = contents(done)
    # Both columns of "better" are the same runs, as what a column changes is what that row sets.
    assert sum(name.endswith("result.json") for name in before) == 3 * 3
    out, _ = at_once("toy", "toy", folder=done)
    assert "9 runs done already" in out
    assert contents(done) == before
    numbers = [
        json.loads(
            (
                run_of(done / "runs", f"toy/toy/table-1/better/left/seed-{s}") / "result.json"
            ).read_text()
        )
        for s in range(3)
    ]
    mean = sum(item["metrics"]["accuracy"] for item in numbers) / 3
    assert f"{mean:.2f}" in out
    assert "1.00 ± 0.10" in out
    assert out.splitlines()[-1].endswith("writes results/toy/toy/table-1.md")


def test_a_plan_is_of_the_chosen_table_row_column_and_seeds_and_runs_nothing(
    tmp_path: Path, at_once: AtOnce
) -> None:
    words = ("--table", "1", "--row", "Better", "--column", "right", "--seeds", "4,5")
    out, _ = at_once("plan", "toy", "toy", *words)
    assert "better" in out
    assert "plain" not in out
    assert "2 of 2 cells to run" in out
    assert list(tmp_path.iterdir()) == []


def test_cells_without_their_data_are_planned_and_say_how_to_get_them(
    tmp_path: Path, at_once: AtOnce
) -> None:
    arguments = ("toy", "partial", "--table", "figure-3")
    out, _ = at_once("plan", *arguments)
    words = " ".join(out.split())
    assert "6 of 6 cells to run" in words
    assert "Data to get first: toys: data missing in" in words
    # What only lacks its data does not start, and says once before the others what to do.
    out, err = at_once(*arguments, code=1)
    said = "2 cells not run: data missing; fetch it with: ./reproduce.sh data toy --dataset toys"
    assert out.index(said) < out.index("4 cells to run")
    assert out.count("fetching toys ...") == 1
    both = [f"toy/partial/figure-3/curve/far/seed-{seed}" for seed in (0, 1)]
    assert f"{', '.join(both)}: not run: data missing; fetch" in err
    configs = [json.loads(file.read_text()) for file in tmp_path.glob("runs/toy/*/*/config.json")]
    assert {(each["kind"], each["offset"]) for each in configs} == {("works", 0.0), ("works", 5.0)}
    at_once(*arguments, "--tier", "smoke")
    assert len(list(tmp_path.glob("runs/toy/*/*/config.json"))) == len(configs) + 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU one cell runs at a time")
def test_threads_and_jobs_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for threads, jobs in ((1, 8), (3, 2), (16, 1)):
        assert jobs_of(Namespace(jobs=None, threads=threads)) == jobs


def test_a_package_that_is_not_installed_names_the_extra(tmp_path: Path) -> None:
    error = ModuleNotFoundError("No module named 'torch_geometric'", name="torch_geometric")
    run = Run(tmp_path, TABLES["toy"][0].config)
    assert "margins-in-contrastive-learning[graph]" in worker._outcome_of(error, run, "graph").why
    assert "extra" not in worker._outcome_of(error, run, "toy").why


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_gpu_gives_the_same_bits_where_that_is_asked_for(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithms, cudnn = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn
    warns, name = torch.is_deterministic_algorithms_warn_only_enabled(), "CUBLAS_WORKSPACE_CONFIG"
    for kept in ("benchmark", "deterministic"):
        monkeypatch.setattr(cudnn, kept, getattr(cudnn, kept))
    monkeypatch.setenv(name, "another")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    try:
        worker.set_up_torch(torch.get_num_threads(), deterministic=deterministic)
        assert torch.are_deterministic_algorithms_enabled() is deterministic
        if deterministic:
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert cudnn.benchmark is not deterministic
        assert os.environ[name] == (":16:8" if deterministic else "another")
    finally:
        torch.use_deterministic_algorithms(algorithms, warn_only=warns)


def test_of_several_tables_those_that_have_the_row(at_once: AtOnce) -> None:
    out, _ = at_once("plan", "toy", "partial", "--row", "better")
    assert "toy/partial/table-3: " in out
    assert "figure-3" not in out
    _, err = at_once("plan", "toy", "partial", "--row", "beter", code=2)
    assert "mean better?" in err


def test_folders_of_the_checkout_are_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert of_checkout("runs") == Path("runs")  # called from Python, or installed
    monkeypatch.setenv("SUITE_COMMAND", "./reproduce.sh")
    assert of_checkout("runs") == ROOT / "runs"
    monkeypatch.chdir(ROOT)
    assert of_checkout("runs") == Path("runs")


@pytest.mark.slow
def test_figures_go_where_it_says_and_beside_their_tables_when_asked(
    tmp_path: Path, at_once: AtOnce
) -> None:
    out, _ = at_once("figures", "toy", "partial")
    folder = "exports/figures/toy/partial/figures"
    names = [f"{name}.{kind}" for name in ("figure-3", "overview") for kind in ("png", "pdf")]
    assert out.split() == [f"{folder}/{name}" for name in names]
    assert (tmp_path / folder / "overview.png").exists()
    assert not (tmp_path / "runs").exists()  # nothing was run
    assert not (tmp_path / "results").exists()
    out, _ = at_once("figures", "toy", "partial", "--to", "results")
    assert out.split()[0] == "results/toy/partial/figures/figure-3.png"
    at_once("toy", "partial", "--column", "left", "--seeds", "0")
    at_once("report")
    page = (tmp_path / "results/toy/partial/figure-3.md").read_text()
    assert "\n![figure-3.png](figures/figure-3.png)\n" in page
    assert "Other figures of this paper: [overview.png](figures/overview.png).\n" in page


@pytest.mark.slow
def test_finished_runs_of_a_tier_are_filmed(tmp_path: Path, at_once: AtOnce) -> None:
    at_once("toy", "toy", "--tier", "short", "--row", "better")
    before = contents(tmp_path)
    out, _ = at_once("film", "toy", "toy", "--tier", "short")
    films = [f"{run_of(Path('runs'), 'short/toy/toy/table-1/better/left/seed-0')}/episode.gif"]
    assert out.split() == films
    assert set(contents(tmp_path)) == {*before, *films}  # nothing was run


def test_export_of_a_finished_run(done: Path, tmp_path: Path, at_once: AtOnce) -> None:
    address = "toy/toy/table-1/plain/left/seed-0"
    run = run_of(Path("runs"), address)
    config = (done / run / "config.json").read_text()
    shutil.copytree(done / "runs", tmp_path / "runs")
    shutil.copytree(done / run, tmp_path / "mine")
    for arguments, target in (
        ((address,), f"exports/{address}"),
        ((str(run), "--to", "there"), "there"),
        (("mine", "--domain", "toy"), "exports/mine"),
    ):
        out, _ = at_once("export", *arguments)
        assert out == f"{target}/model.json\n"
        assert (tmp_path / target / "model.json").read_text() == config
    short = run_of(tmp_path / "runs", f"short/{address}")
    shutil.copytree(tmp_path / "mine", short)
    out, _ = at_once("export", f"short/{address}")
    assert out == f"exports/short/{address}/model.json\n"
    (short / "result.json").unlink()
    for arguments, word in (
        (("mine",), "--domain"),
        (("mine", "--domain", "tractor"), "'tractor'"),
        (("yours",), "'yours'"),
        (("toy/toy/table-1/plain/left/seed-9",), "--cell toy/toy/"),
        ((f"short/{address}",), "not finished"),
    ):
        assert word in at_once("export", *arguments, code=2)[1]


def test_a_table_is_left_out_of_a_tier_without_seeds(tmp_path: Path, at_once: AtOnce) -> None:
    out, _ = at_once("plan", "toy", "costly")
    assert "toy/costly/table-1: " in out
    assert "toy/costly/table-2: " in out
    for seeds in ((), ("--seeds", "0")):
        out, _ = at_once("plan", "toy", "costly", "--tier", "short", *seeds)
        assert "toy/costly/table-1: " in out
        assert "table-2" not in out
        arguments = ("toy", "costly", "--table", "2", "--tier", "short", *seeds)
        assert "short tier" in at_once(*arguments, code=2)[1]
    cell = "short/toy/costly/table-2/plain/left/seed-0"
    assert "short tier" in at_once("--cell", cell, code=2)[1]


@pytest.mark.parametrize("tier", ["paper", "smoke", "short"])
def test_one_cell_by_its_address(tmp_path: Path, tier: str, at_once: AtOnce) -> None:
    column = "embedded-sample" if tier == "smoke" else "left"
    address = f"toy/toy/table-1/plain/{column}/seed-0"
    address = address if tier == "paper" else f"{tier}/{address}"
    at_once("--cell", address)
    run = run_of(tmp_path / "runs", address)
    result = json.loads((run / "result.json").read_text())
    config = json.loads((run / "config.json").read_text())
    assert result["tier"] == tier
    assert config["steps"] == {"paper": 3, "short": 2, "smoke": 2}[tier]
    environment = json.loads((run / "environment.json").read_text())
    assert address in environment["command"]


def test_failed_cells_are_recorded_and_the_others_go_on(tmp_path: Path, at_once: AtOnce) -> None:
    out, err = at_once("toy", "broken", "--seeds", "0", "--column", "left", code=1)
    table = "toy/broken/table-1"
    checkpoint = run_of(Path("runs"), f"{table}/diverges/left/seed-0") / "checkpoint.pt"
    for row, *words in (
        ("made-to-fail", "RuntimeError: made to fail"),
        ("diverges", "not finite at step 1", f"{checkpoint} at step 1"),
        ("killed", "SIGKILL", "batch_size (16)"),
        ("leaves", f"SystemExit(3) from {toy.train.__file__}, line {LEAVES}"),
        ("too-large", "out of memory", "batch_size (16)"),
        ("too-large-array", "out of memory", "batch_size (16)"),
        ("too-large-on-a-device", "out of memory", "batch_size (512)"),
    ):
        run = run_of(tmp_path / "runs", f"{table}/{row}/left/seed-0")
        why = json.loads((run / "failure.json").read_text())["why"]
        assert why.startswith("failed: ")
        assert all(word in why for word in words)
        (line,) = (line for line in err.splitlines() if line.endswith(f": {why}"))
        assert f"{table}/{row}/left/seed-0" in line  # with those that failed alike
    missing = "not run: data missing; fetch it with: ./reproduce.sh data toy --dataset toys"
    assert f"lacks-data/left/seed-0: {missing}" in err
    assert "fetching toys failed: toys: download failed" in out
    assert missing in " ".join(out.split())
    assert len(list((tmp_path / "runs").rglob("result.json"))) == 2  # plain, better


def test_a_changed_configuration_stops_before_anything_runs(
    done: Path, tmp_path: Path, at_once: AtOnce
) -> None:
    shutil.copytree(done / "runs", tmp_path / "runs")
    file = run_of(tmp_path / "runs", "toy/toy/table-1/better/left/seed-1") / "config.json"
    file.write_text(file.read_text().replace('"steps": 3', '"steps": 4'))
    shutil.rmtree(run_of(tmp_path / "runs", "toy/toy/table-1/plain/left/seed-0"))
    before = contents(tmp_path)
    _, err = at_once("toy", "toy", code=2)
    assert "steps: 4 there, 3 here" in err
    assert err.count("\n") == 1
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("tractor", "x"), "'tractor'"),
        (("grahp", "mmcl"), "mean graph?"),
        (("mmcl", "graph"), "as in graph mmcl"),
        (("toy", "lcml"), "'lcml'"),
        (("graph", "mcml"), "mean mmcl?"),
        (("toy", "toy", "--table", "9"), "table-1"),
        (("toy", "toy", "--row", "Plian"), "mean plain?"),
        (("toy", "toy", "--column", "up"), "left | right"),
        (("toy", "toy", "--tier", "smok"), "mean smoke?"),
        (("toy", "toy", "--rwo", "plain"), "mean --row?"),
        (("toy", "toy", "--set", "stesp=3"), "mean steps?"),
        (("toy", "toy", "--set", "steps=x"), "'x'"),
        (("toy", "toy", "--set", "steps=1", "--set", "steps=2"), "--set steps"),
        (("graph", "mmcl", "--set", "objective.gamma=1"), "objective.gamma"),
        (("toy", "toy", "--seeds", f"0-{10**11}"), f"'0-{10**11}'"),
        (("toy", "toy", "--seeds", str(2**32)), f"'{2**32}'"),
        (("toy", "shared", "--row", "base", "--seeds", "1"), "seeds"),
        (("toy", "toy", "--runs", __file__), "--runs"),
        (("plan", "toy", "toy", "--data-root", __file__), "--data-root"),
        (("plan", "vision", "lmcl", "--table", "table-2-small"), "--tier short"),
        (("--runs", "x", "report"), "./reproduce.sh report"),
        (("report", "--results", ""), "--results"),
        (("--cell", "toy/toy/table-1/plain/left"), "addressed as"),
        (("--cell", "toy/toy/table-7/plain/left/seed-0"), "'table-7'"),
        (("data", "toy", "--dataset", "cars"), "toys"),
        (("toy",), "DOMAIN PAPER"),
        (("status",), "verbs are"),
        (("verify", "toy", "toy"), "[DOMAIN]"),
        (("verify", "--row", "plain"), "--rerun"),
        (("evaluate", "toy", ""), "DOMAIN MODEL"),
        (("evaluate", "vision", "no.pt"), "no.pt"),
        (("docs",), "clone"),
        (("film", "toy", "toy"), "finished run"),
        (("film", "graph", "mmcl"), "graph"),
        (("figures", "toy", "toy"), "toy/toy"),
        (("figures", "graph", "mmcl"), "graph"),
        (("export",), "RUN"),
        (("compare", "graph", "mmcl", "--with", "a.py"), "FILE.py:LOSS"),
        (("compare", "graph", "mmcl", "--with", "a.py:f,x"), "NUMBER=VALUE"),
        (("compare", "graph", "mmcl", "--with", "none.py:f"), "none.py"),
        *((("toy", "toy", f"--seeds={value}"), repr(value)) for value in ("1;2", "3-1", "", "-1")),
        *((("toy", "toy", f"--watch={value}"), repr(value)) for value in ("0", "knn", "2.5")),
        # What trains nothing new has no such option.
        *(((verb, "toy", "toy", "--watch", "2"), "no option") for verb in ("plan", "verify")),
    ],
)
def test_unusable_input_is_one_line_and_starts_nothing(
    tmp_path: Path, at_once: AtOnce, arguments: tuple[str, ...], word: str
) -> None:
    _, err = at_once(*arguments, code=2)
    assert word in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1 or err.endswith(reproduce.USAGE)
    assert list(tmp_path.iterdir()) == []


def test_version_and_help(at_once: AtOnce) -> None:
    out, _ = at_once("--version")
    assert re.fullmatch(r"margins-in-contrastive-learning \S+ \(.*\)\n", out)
    assert at_once("help") == at_once("--help") == (reproduce.USAGE, "")
    with pytest.raises(SystemExit, match="0"):
        at_once("help", "plan")


def test_seeds_are_numbers_and_ranges(at_once: AtOnce) -> None:
    for seeds, count in (("0-4", 5), ("0,2,5-7", 5), ("3", 1), ("0-2,1", 3), ("4-4", 1)):
        out, _ = at_once("plan", "toy", "toy", "--seeds", seeds, "--row", "plain")
        assert f"{2 * count} of {2 * count} cells to run" in " ".join(out.split())


def test_folder_that_cannot_be_written(done: Path, at_once: AtOnce) -> None:
    before = contents(done)
    # A file where a folder must be: refused for every user, root too.
    run = run_of(done / "runs", "toy/toy/table-1/better/left/seed-0")
    blocked = run / "result.json/deeper"
    _, err = at_once("toy", "toy", "--runs", str(blocked), code=1, folder=done)
    assert "choose another folder" in err
    assert contents(done) == before
    _, err = at_once("report", "--results", "/proc/results", code=1, folder=done)
    assert "/proc/results" in err


def test_cells_of_one_encoder_wait_until_the_first_has_stored_it(tmp_path: Path) -> None:
    places = cells.Places(tmp_path / "runs", tmp_path / "results", tmp_path)
    pool = Pool(places, Namespace(threads=1, jobs=2), Console(quiet=True))
    first, second, other = pool._waiting = [*TABLES["toy"][0].cells("paper")][:3]
    store = tmp_path / "encoders"
    pool._encoders = {cell.address: (store, "encoder") for cell in (first, second)}
    assert pool._next() == first
    pool._running["pipe"] = (first, None, None)
    assert pool._next() == other
    assert pool._next() is None
    (store / "encoder-data").mkdir(parents=True)
    (store / "encoder-data" / "SHA256SUMS").touch()
    assert pool._next() == second


@pytest.mark.parametrize(
    ("name", "text"), [("claims.toml", "[[claim]\n"), ("claims.toml", ""), ("notes.toml", "a = ")]
)
def test_a_damaged_file_of_published_numbers_is_one_line(
    tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    read = {
        "claims.toml": lambda: with_claims({"toy": TABLES["toy"]}, file),
        "notes.toml": lambda: load_notes(file),
    }
    assert name in error_of(read[name])


@pytest.mark.slow
def test_sigterm_stops_all_cells_and_the_same_command_goes_on(
    tmp_path: Path, at_once: AtOnce
) -> None:
    arguments = ("toy", "slow", "--row", "plain", "--column", "left", "--seeds", "0,1")
    process = start(tmp_path, *arguments, "--jobs", "2")
    addresses = [f"toy/slow/table-1/plain/left/seed-{seed}" for seed in (0, 1)]
    cells = [run_of(tmp_path / "runs", address) for address in addresses]
    wait_for(lambda: all((cell / "checkpoint.pt").exists() for cell in cells))
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 75
    assert "rerun the same command" in out
    assert not any((cell / "result.json").exists() for cell in cells)
    at_once(*arguments, "--jobs", "2")
    assert all((cell / "result.json").exists() for cell in cells)


@pytest.mark.slow
def test_after_the_parent_is_killed_its_cells_stop_by_themselves(
    tmp_path: Path, at_once: AtOnce
) -> None:
    arguments = ("toy", "slow", "--row", "plain", "--column", "left", "--seeds", "0")
    process = start(tmp_path, *arguments)
    cell = run_of(tmp_path / "runs", "toy/slow/table-1/plain/left/seed-0")
    wait_for(lambda: (cell / "checkpoint.pt").exists())
    process.kill()
    process.communicate(timeout=300)
    at_once(*arguments)
    lines = [json.loads(line) for line in (cell / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 21))


@pytest.mark.slow
def test_asked_twice_it_stops_where_it_is(tmp_path: Path) -> None:
    """A step of five minutes hears nothing of the first wish; SIGTERM is no second one."""
    arguments = ("toy", "toy", "--row", "plain", "--column", "left", "--seeds", "0")
    process = start(tmp_path, *arguments, "--set", "pause=300")
    wait_for(lambda: any(tmp_path.rglob("environment.json")))
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 75, err
    assert out.count("stopping after running cells have saved; Ctrl-C again stops at once") == 1
    assert "interrupted; rerun the same command to resume" in out
    assert "method" not in out  # no table of dashes
    assert not any(tmp_path.rglob("failure.json"))


def test_report_writes_results_and_keeps_old_records(
    done: Path, tmp_path: Path, at_once: AtOnce
) -> None:
    results = tmp_path / "results"
    at_once("report", "--results", str(results), folder=done)
    written = contents(results)
    assert {
        "README.md",
        "claims.json",
        *(f"toy/toy/table-1.{end}" for end in ("md", "csv", "records.jsonl")),
    } <= set(written)
    # Without any run on this disk, the committed records alone give the same report.
    at_once("report", "--results", str(results))
    assert contents(results) == written


def wait_for(condition: object) -> None:
    assert callable(condition)
    for _ in range(2400):  # long enough for a machine that is busy with something else
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited two minutes in vain")


@pytest.mark.slow
def test_columns_of_one_run_are_run_once_and_shown_each_by_its_metric(
    tmp_path: Path, at_once: AtOnce
) -> None:
    out, _ = at_once("toy", "shared")
    found = list((tmp_path / "runs").rglob("result.json"))
    assert len(found) == 11  # seed 0 of "plain" is "base", too

    def metrics_of(cell: str) -> dict[str, float]:
        run = run_of(tmp_path / "runs", f"toy/shared/table-1/{cell}")
        return json.loads((run / "result.json").read_text())["metrics"]

    said = re.findall(r"\] (\w+) / \w+ / seed (\d): accuracy ([\d.]+)", out)
    assert said  # of the first of its columns
    for row, seed, accuracy in said:
        assert accuracy == f"{metrics_of(f'{row}/both/seed-{seed}')['accuracy']:.4g}"
    at_once("report")
    with (tmp_path / "results/toy/shared/table-1.csv").open() as stream:
        lines = {(line["row"], line["column"]): line for line in csv.DictReader(stream)}
    base = metrics_of("base/both/seed-0")
    for column, metric in (("left", "accuracy"), ("norm", "norm")):
        line = lines["base", column]
        assert (line["metric"], line["seeds_measured"], line["seeds_declared"]) == (
            metric,
            "1",
            "1",
        )
        assert float(line["measured_mean"]) == pytest.approx(base[metric])
    records = (tmp_path / "results/toy/shared/table-1.records.jsonl").read_text().splitlines()
    assert len(records) == 14
    plan, _ = at_once("plan", "toy", "shared")
    assert "0 of 14 cells to run" in plan


def test_what_no_cell_could_run_with_is_refused_before_any_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (table,) = cells.choose_tables("vision", "margins", "table-2-cifar10", "short")
    cell = next(cell for cell in table.cells("short") if trains(cell.config))
    running._check_known([cell])
    larger = replace(cell, config=replace(cell.config, batch_size=10**7))
    assert "batch_size 10000000" in error_of(lambda: running._check_known([larger]))
    monkeypatch.setattr(metadata, "distributions", lambda name: [])
    assert "torchvision" in error_of(lambda: running._check_known([cell]))


def test_python_names_the_extra_too() -> None:
    program = "import sys; sys.modules['torch_geometric'] = None; import graph; graph.Encoder"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "margins-in-contrastive-learning[graph]" in done.stderr.splitlines()[-1]


def test_cells_that_another_command_runs_come_last(tmp_path: Path) -> None:
    places = cells.Places(tmp_path / "runs", tmp_path / "results", tmp_path)
    pool = Pool(places, Namespace(threads=1, jobs=1), Console(quiet=True))
    first, second, *_ = pool._waiting = [*TABLES["toy"][0].cells("paper")][:3]
    with Run(places.runs / first.folder, first.config):
        assert pool._next() == second
    assert pool._next() == first


def test_all_that_a_cell_lacks_is_said_at_once(tmp_path: Path) -> None:
    places = cells.Places(tmp_path / "runs", tmp_path / "results", tmp_path / "data")
    (table,) = cells.choose_tables("text", "lmcl", "table-4-small", "short")
    options = Namespace(threads=1, jobs=1, no_download=False)
    pool = Pool(places, options, Console(quiet=True))
    some = [*table.cells("short")]
    assert pool.leave_out(some) == []
    assert pool.outcomes.keys() == {cell.address for cell in some}
    whole = max(pool.outcomes.values(), key=len)
    assert "books" in whole
    assert "senteval" in whole
    assert "--set tasks=topics,questions" in whole
