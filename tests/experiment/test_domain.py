"""What every domain gives is one object, and it says what it lacks."""

import dataclasses
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import toy
from toy.train import Config

from shared.command import cells
from shared.experiment.domain import Experiment
from shared.experiment.run import Run
from shared.lazy import LazyImport

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_with_tables_is_a_domain() -> None:
    packages = {file.parent.name for file in ROOT.glob("*/tables.py")}
    assert packages == set(cells.DOMAINS)


@pytest.mark.parametrize("name", cells.DOMAINS)
def test_a_domain_is_one_object(name: str) -> None:
    domain = cells.domain_of(name)
    assert domain is cells.imported(name)
    assert domain.name == name
    assert domain.tables is cells.tables_of(name)
    for each in domain.experiments:
        assert domain.experiment(each.config()) is each
    for each in (*vars(domain).values(), *(one.measure for one in domain.experiments)):
        if isinstance(each, LazyImport):
            assert each.name.startswith(f"{name}.")
            assert pkgutil.resolve_name(each.name)


def test_another_package_called_shared_is_one_clear_line(tmp_path: Path) -> None:
    inits = ((ROOT / each / "__init__.py").read_text() for each in cells.DOMAINS)
    assert len({text.partition("\nimport shared\n")[2] for text in inits}) == 1
    (tmp_path / "shared.py").touch()
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import graph"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {tmp_path / 'shared.py'} hides ")


def test_a_configuration_goes_to_its_own_experiment(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Other(Config):
        factor: int = 3

        def reduced(self) -> "Other":
            return self

    def measure(config: Other, run: Run) -> dict[str, float]:
        return {"accuracy": 2.0 * config.factor}

    both = dataclasses.replace(
        toy.DOMAIN, experiments=(*toy.DOMAIN.experiments, Experiment(Other, measure))
    )
    with Run(tmp_path / "other", Other()) as here:
        assert both.measure(Other(), here) == {"accuracy": 6.0}
    with Run(tmp_path / "own", Config()) as here:
        assert set(both.measure(Config(), here)) == {"accuracy", "norm"}
        with pytest.raises(ValueError, match="Other"):
            toy.DOMAIN.measure(Other(), here)


def test_a_domain_has_its_own_tables_only() -> None:
    (table,) = toy.TABLES["toy"]
    theirs = dataclasses.replace(table, domain="graph")
    with pytest.raises(ValueError, match="graph/toy/table-1"):
        dataclasses.replace(toy.DOMAIN, tables={"toy": (theirs,)})
    with pytest.raises(ValueError, match="Config"):
        dataclasses.replace(toy.DOMAIN, experiments=())
