"""Runs of one's own: changed configurations, and a loss of one's own as one more row."""

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from toy.program import AtOnce
from toy.tables import TABLES as TOY
from toy.tables import run_of

from graph.tables import TABLE_4
from graph.tables import TABLES as GRAPH
from rl.tables import TABLES as RL
from shared.command.own import baseline_of, column_metrics, load_loss
from shared.command.pool import Pool
from shared.experiment.tables import Table, Tier
from shared.report.wording import shown_metric
from tests.stages.errors import error_of
from text.tables import TABLES as TEXT
from video.tables import TABLES as VIDEO
from vision.tables import TABLES as VISION

CLAIMED, FIRST = True, False
# InfoNCE without the positive in the denominator, which GraphCL's row trains with.
LOSS = '''\
def my_loss(pairs, similarity, *, temperature: float, turned: bool = False):
    """GraphCL's loss, written by hand."""
    scores = similarity / temperature
    count = pairs.positive.sum(1)
    positives = (scores * pairs.positive).sum(1) / count.clamp(min=1)
    negatives = scores.masked_fill(~pairs.negative, float("-inf")).logsumexp(1)
    loss = positives - negatives if turned else negatives - positives
    return loss.where(count > 0, 0.0)
'''


TORCH = "import torch\n"


def values(folder: Path) -> list[float]:
    return [
        json.loads(file.read_text())["metrics"]["accuracy"]
        for file in sorted(folder.rglob("result.json"))
    ]


def test_a_loss_is_loaded_with_its_numbers(losses: Path) -> None:
    loss = load_loss(losses, "my_loss", ["temperature=0.5", "turned=true"])
    assert loss.function.__name__ == "my_loss"
    assert loss.kwargs == {"temperature": 0.5, "turned": True}
    assert loss.weight == 1.0


@pytest.mark.parametrize(
    ("body", "settings", "word"),
    [
        ("def g(pairs, s):\n    return s.sum(1)\n", [], "'f'"),
        ("def f(pairs, s, *, t):\n    return s.sum(1)\n", [], "needs t"),
        ("def f(pairs, s, *, temperature=1.0):\n    return s\n", ["temprature=1"], "temperature?"),
        ("def f(pairs, s, *, weight=1.0):\n    return s.sum(1)\n", ["weight=2"], "weight"),
        ("def f(pairs, s, *, t=1.0):\n    return s.sum(1)\n", ["t=1"] * 2, "twice"),
        ("def f(pairs, s, *, t: float = 1.0):\n    return s.sum(1)\n", ["t=warm"], "'warm'"),
        ("def f(pairs, s, t=1.0):\n    return s.sum(1)\n", ["t=2"], "after a *"),
        ("def f(pairs, s):\n    return s.sum()\n", [], "(6,)"),
        ("def f(pairs, s):\n    return 1\n", [], "tensor"),
        ("def f(pairs, s):\n    return s.sum(1).detach()\n", [], "no gradient"),
        ("def f(pairs, s):\n    return 0 * s.sum(1)\n", [], "gradient of 0"),
        ("def f(pairs, s):\n    return (s.sum(1) - 1e4).relu()\n", [], "gradient of 0"),
        ("def f(pairs, s):\n    return s.sun(1)\n", [], "line 2: AttributeError"),
        ("def f(pairs, s):\n    return (s\n", [], "line 2: SyntaxError"),
        ("import sys\nsys.exit(3)\n", [], "line 2: SystemExit"),
        ("def f(pairs, s):\n    raise SystemExit\n", [], "f: "),
        ("import nothing_of_that_name\n", [], "line 1: ModuleNotFoundError"),
        ("from .b import f\n", [], "package"),
        ("f = lambda pairs, s: s.sum(1)\n", [], "lambda"),
        ("f = 3\n", [], "'f'"),
        ("class f:\n    pass\n", [], "'f'"),
        ("from shared.losses import info_nce as f\n", [], "'f'"),
        (f"{TORCH}def f(p, s):\n    return torch.nn.Linear(6, 6)(s).sum(1)\n", [], "parameter"),
        *(
            (body, [], "called again")
            for body in (
                "n = 0\ndef f(p, s):\n    global n\n    n += 1\n    return s.sum(1) * n\n",
                f"{TORCH}g = torch.Generator()\n"
                "def f(p, s):\n    return s.sum(1) * torch.rand((), generator=g)\n",
                "import itertools\ndef g():\n    yield from itertools.count(1)\nn = g()\n"
                "def f(p, s):\n    return s.sum(1) * next(n)\n",
                f"{TORCH}import functools\n@functools.cache\ndef n():\n    return torch.rand(())\n"
                "def f(p, s):\n    return s.sum(1) * n() + torch.rand(())\n",
            )
        ),
    ],
)
def test_functions_that_are_no_losses_are_refused_in_one_line(
    losses: Path, body: str, settings: list[str], word: str
) -> None:
    losses.write_text(body)
    assert word in error_of(lambda: load_loss(losses, "f", settings))


@pytest.mark.parametrize(
    "body",
    [
        # A cache that the first call fills, and the global generator, which checkpoints hold.
        f"{TORCH}c = {{}}\ndef f(p, s):\n    return s.sum(1) * c.setdefault(1, torch.ones(()))\n",
        f"{TORCH}def f(p, s):\n    return (s + torch.randn_like(s)).sum(1)\n",
        "import random\nimport numpy as np\n"
        "def f(p, s):\n    return s.sum(1) * random.random() + np.random.rand()\n",
        "def f(pairs, s):\n    return s.sum(1) * float('nan')\n",
    ],
)
def test_a_loss_may_fill_a_cache_and_draw_from_the_global_generator(
    losses: Path, body: str
) -> None:
    losses.write_text(body)
    assert load_loss(losses, "f", []).function.__name__ == "f"


def test_none_is_none_where_a_number_has_no_type(losses: Path) -> None:
    losses.write_text("def f(pairs, s, *, w=1):\n    return s.sum(1) * (w or 1)\n")
    assert load_loss(losses, "f", ["w=None"]).kwargs == {"w": None}


def test_a_file_that_is_not_there_or_hides_a_module_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "none.py" in error_of(lambda: load_loss(tmp_path / "none.py", "f", []))
    (tmp_path / "json.py").write_text(LOSS)
    assert "'json'" in error_of(lambda: load_loss(tmp_path / "json.py", "my_loss", []))


@pytest.mark.parametrize(
    ("table", "tier", "row", "claimed"),
    [
        (GRAPH["mmcl"][0], "smoke", "GraphCL", CLAIMED),
        (TEXT["lmcl"][2], "short", "QT", CLAIMED),
        (RL["cllr"][0], "paper", "CURL", CLAIMED),
        # The row that its one claim is made against does not train.
        (RL["curl"][0], "short", "CURL, batch 128, bfloat16 convolutions", FIRST),
        (VIDEO["mmcl"][1], "short", "MoCo-v2", CLAIMED),
        (VISION["margins"][0], "paper", "MoCo, alpha=0", CLAIMED),
        (VISION["margins"][3], "smoke", "MoCov3", CLAIMED),
    ],
)
def test_the_baseline_is_the_row_that_claims_are_made_against(
    table: Table, tier: Tier, row: str, claimed: bool
) -> None:
    counts = Counter(each.baseline for claim in table.claims for each in claim.comparisons)
    assert baseline_of(table, tier).label == row
    assert (counts[row] == max(counts.values())) is claimed


def test_the_baseline_can_be_chosen() -> None:
    assert baseline_of(TABLE_4, "paper", "hcl").label == "HCL"
    for table, row in ((TABLE_4, "HCLL"), (TABLE_4, "untrained encoder"), (TOY["toy"][0], None)):
        assert (row or table.address) in error_of(lambda t=table, r=row: baseline_of(t, "paper", r))


@pytest.mark.slow
def test_changed_configurations_run_beside_the_tables(tmp_path: Path, at_once: AtOnce) -> None:
    choice = ("toy", "toy", "--row", "plain", "--column", "left", "--seeds", "0-1")
    out, _ = at_once(*choice, "--set", "steps=2", "--set", "offset=5")
    assert "toy/toy/table-1 as declared:\n  offset: 0.0 -> 5.0\n  steps: 3 -> 2\n" in out
    assert "toy/toy/table-1 (paper tier, changed by steps=2, offset=5)" in out
    assert out.count("warning: 2 training steps, too few to tell losses apart") == 1
    for folder in (tmp_path / "runs/own/toy/works").iterdir():
        assert f"\n  runs/own/toy/works/{folder.name}\n" in out
    home = tmp_path / "runs/own/toy/works"
    (file,) = home.glob("seed-1-*/config.json")
    config = json.loads(file.read_text())
    assert (config["steps"], config["offset"], config["seed"]) == (2, 5.0, 1)
    assert not list(tmp_path.glob("runs/toy/*/*"))
    found = values(home)
    assert f"{sum(found) / 2:.2f} ± " in out
    out, _ = at_once(*choice, "--set", "offset=5", "--set", "steps=2")  # the same, said otherwise
    assert "2 runs done already" in out

    # Even with the declared configuration, and put where a table's runs lie, it does not count.
    at_once(*choice[:-1], "0", "--set", "steps=3")
    same = run_of(tmp_path / "runs/own", "toy/toy/table-1/plain/left/seed-0")
    assert json.loads((same / "result.json").read_text())["tier"] == "own"
    out, _ = at_once("report")
    assert "0 tables;" in out
    shutil.copytree(same, run_of(tmp_path / "runs", "toy/toy/table-1/plain/left/seed-0"))
    out, _ = at_once("report")
    assert "0 tables;" in out
    out, _ = at_once("verify")
    assert "own" not in out.replace("of one's own", "").replace("known", "")


@pytest.mark.slow
@pytest.mark.usefixtures("modules_server")
def test_a_loss_edited_while_its_cells_run_is_refused(
    losses: Path, tmp_path: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Pool.run

    def edited(self: Pool, *given: object) -> None:
        losses.write_text(LOSS.replace("loss = positives", "loss = 2 * positives"))
        start(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Pool, "run", edited)
    spelled = f"{losses.name}:my_loss,temperature=0.2"
    table = ("compare", "graph", "mmcl", "--table", "4", "--tier", "smoke", "--seeds", "0")
    _, err = at_once(*table, "--with", spelled, code=1)
    assert "the source of its loss changed since the command began; start it again" in err
    assert not list(tmp_path.glob("runs/own/graph/*/*/result.json"))


def test_columns_of_one_run_do_not_repeat_a_number_under_their_labels() -> None:
    """As those of text's tasks would, of runs on other tasks."""
    (table,) = (each for each in TEXT["lmcl"] if each.name == "table-4-small")
    columns = table.columns_of("short")

    def shown(**metrics: float) -> dict[str, str]:
        return column_metrics(table, columns, {each.label: [metrics] * 2 for each in columns})

    assert shown(questions=30.0, mean=30.0) == {"mean of the tasks": "mean"}
    assert shown(questions=30.0, MR=50.0, mean=40.0) == {"MR": "MR", "mean of the tasks": "mean"}
    assert shown(questions=30.0) == {columns[0].label: "questions"}
    nothing = column_metrics(table, columns, {each.label: [] for each in columns})
    assert nothing == {each.label: table.metric_of(each) for each in columns}
    assert shown_metric("MR", [{"mean": 1.0, "MR": 2.0}, {"mean": 1.0}]) == "MR"
    apart = TABLE_4.columns_of("paper")[:2]  # each with runs of its own
    other = {each.label: [{"R@1": 5.0}] for each in apart}
    assert column_metrics(TABLE_4, apart, other) == dict.fromkeys(other, "R@1")
