"""The command line: parses words and options, and calls the module that does the work.

Nothing heavy is imported before the words are parsed, so that a typo is reported at once.

Exit codes: 0 done; 1 a cell failed, data are missing or a check found a fault; 2 unusable input; 75
interrupted, the same command continues.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from shared.command import cells
from shared.errors import UserError, describe_os_error, program, suggestion
from shared.experiment.checkout import of_checkout
from shared.experiment.data import data_root
from shared.experiment.tables import TIERS
from shared.notices import show_plain_warnings

USAGE = """\
Reproduces four papers on margins in contrastive learning (LMCL, CLLR, MMCL and
"margins") in five domains: vision, text, rl, graph, video.

Run the tables of a paper in a domain:
  ./reproduce.sh graph mmcl                 all of them, then print them
  ./reproduce.sh graph mmcl --tier smoke    on embedded data, in about a minute
  ./reproduce.sh graph mmcl --table 4 --row MMCL --column MUTAG --seeds 0-4
  ./reproduce.sh graph mmcl --set epochs=3           with settings of your own
  ./reproduce.sh plan graph mmcl            what is done and left; the time
  ./reproduce.sh data graph                 download and check the data
Your method beside theirs, as a table that can be published:
  ./reproduce.sh compare graph mmcl --with losses.py:mine --rows hcl --to paper
Use what was run:
  report      write results/ from the finished runs
  verify      check every record; --rerun 3 runs three cells again
  figures     the figures of a paper       film      an episode of each agent
  export      the model of a run           evaluate  any model, by our protocols
Work on it:
  test        the fast tests; --all: every test; --gpu: those that need a GPU
  benchmark   time the losses and a training step of each domain
  docs        the documentation and results as a site; --serve shows it
All options of a verb: ./reproduce.sh plan --help; of a run: run --help
"""
INTERRUPTED = 75  # as shared.experiment.run has it, which takes seconds to be imported
STOPPED = "interrupted; the same command starts again"
MOST_SEEDS = 10_000  # of a table; more are a mistyped range
CHECKOUT_ONLY = ("test", "benchmark", "docs")


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, like every command of the suite."""

    words: list[str]  # the names of the positional arguments, those in brackets optional

    def error(self, message: str) -> NoReturn:
        """Raise a parsing error."""
        raise UserError(f"{message}; see: {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may lack some characters
        sys.stdout.reconfigure(errors="backslashreplace")
    show_plain_warnings()
    try:
        with _imports_end_cleanly():
            return _main(list(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of the output has ended, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed again at the end
        return 1
    except OSError as error:
        print(f"error: {describe_os_error(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        return INTERRUPTED


@contextlib.contextmanager
def _imports_end_cleanly() -> Iterator[None]:
    """Exit at once on a SIGINT that arrives while a module is imported.

    A KeyboardInterrupt raised inside the initialization of an extension module, such as torch's,
    ends in ``std::terminate`` rather than in an exception. Nothing has started by then.
    """

    def interrupt(_: int, frame: FrameType | None) -> NoReturn:
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                os.write(2, f"{STOPPED}\n".encode())
                os._exit(INTERRUPTED)
            frame = frame.f_back
        raise KeyboardInterrupt

    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # it is ignored, or a caller from Python handles it
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _main(arguments: list[str]) -> int:
    first, *rest = arguments or [""]
    usage = USAGE.replace("./reproduce.sh", program())
    if not arguments:
        print(usage, end="", file=sys.stderr)
        return 2
    if first == "help" and rest and rest[0] in VERBS:
        return VERBS[rest[0]](["--help"])
    if first in ("-h", "--help", "help"):
        print(usage, end="")
        return 0
    if first in ("--version", "version"):
        print(_version())
        return 0
    if first in CHECKOUT_ONLY:  # reproduce.sh handles them itself
        raise UserError(
            f"{first} needs the checkout: clone the repository, then ./reproduce.sh {first}"
        )
    if first in VERBS:
        return VERBS[first](rest)
    late = [argument for argument in arguments if argument in VERBS]
    if first.startswith("-") and late:
        raise UserError(f"the verb comes first: {program()} {late[0]} ...")
    return _run(arguments)


def _version() -> str:
    """The version, and in a checkout the commit."""
    from shared import __version__
    from shared.experiment.checkout import UNKNOWN, commit

    code = commit()
    found = f"{code['commit'][:12]}{', with changes' * code['dirty']}"
    if code["commit"] == UNKNOWN:
        found = "commit unknown"
    return f"margins-in-contrastive-learning {__version__} ({found})"


def _run(arguments: Sequence[str]) -> int:
    parser = _parser("run", "DOMAIN PAPER", "Run the cells of a paper's tables, and print them.")
    _takes_cells(parser)
    _takes_work(parser)
    _takes_training(parser)
    options, places = _parsed(parser, arguments)
    several = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"  # by torchrun
    if several and (len(options.cell or ()) != 1 or options.set):
        raise UserError("several processes share one run: name it by --cell ADDRESS, without --set")
    _say_first(options)
    if several:
        from shared.command import processes

        return processes.take_part(cells.choose(options), places, options)
    if options.set:
        from shared.command import own

        return own.run_with_settings(options, places)
    from shared.command import running

    return running.run_cells(cells.choose(options), places, options)


def _compare(arguments: Sequence[str], *, plan_only: bool = False) -> int:
    what = "Compare rows of a table with a baseline, yours among them, as a table to publish."
    parser = _parser("compare", "DOMAIN [PAPER]", what)
    add = parser.add_argument
    add("--rows", type=_names, default=(), metavar="NAME,...", help="rows, by parts of addresses")
    text = "the baseline; default: the row that most claims are made against, if it is chosen"
    add("--against", metavar="ROW", help=text)
    text = "a row by label or address, also with settings; may be repeated"
    add("--row", action="append", default=[], type=_row, metavar="ROW[:NAME=VALUE]...", help=text)
    _takes_choice(parser, row=False)
    add("--tier", type=_tier, help=f"{', '.join(TIERS)}; default: paper, on your data short")
    add("--data", type=_path, help="your data: a folder, for graphs a file; needs no PAPER")
    text = "your own loss as one more row: the baseline with its loss replaced"
    form = "FILE.py:LOSS[,NUMBER=...]"
    add("--with", dest="loss", action="append", default=[], type=_loss, metavar=form, help=text)
    add("--to", type=_path, metavar="FOLDER", help="write table, pictures and records there")
    add("--replace", action="store_true", help="with --to: rows and seeds there may go")
    text = "records of others, as in the folder records/ of a comparison; may be repeated"
    add("--records", action="append", default=[], type=_path, metavar="FOLDER", help=text)
    _takes_work(parser)
    _takes_training(parser)
    parser.set_defaults(cell=None, cells=None, plan_only=plan_only)
    if plan_only:
        _takes_cells_of_array(parser)
    options, places = _parsed(parser, arguments)
    if options.data is None and len(options.words) < 2:
        raise UserError(f"{parser.prog} takes DOMAIN PAPER, or DOMAIN with --data of your own")
    if not (options.rows or options.row or options.loss or options.data):
        raise UserError("compare needs rows: --rows hcl,dcl or --row, or a loss with --with")
    options.tier = options.tier or ("paper" if options.data is None else "short")
    if options.cells is None:
        _say_first(options)
    from shared.command import compare

    return compare.compare(options, places)


def _plan(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["compare"]:
        return _compare(arguments[1:], plan_only=True)
    what = "Print what would run and what it would cost; run nothing."
    parser = _parser("plan", "DOMAIN PAPER", what)
    _takes_cells(parser)
    _takes_work(parser)
    _takes_cells_of_array(parser)
    parser.set_defaults(again=False)
    options, places = _parsed(parser, arguments)
    from shared.command import running

    return running.plan_cells(cells.choose(options), places, options)


def _report(arguments: Sequence[str]) -> int:
    parser = _parser("report", "", "Write results/ from every finished run of the tables.")
    text = "replace committed records by new runs of their cells, and list both numbers"
    parser.add_argument("--replace", action="store_true", help=text)
    options, places = _parsed(parser, arguments)
    from shared.command import verbs

    return verbs.report(places, replace=options.replace)


def _figures(arguments: Sequence[str]) -> int:
    parser = _parser("figures", "DOMAIN PAPER", "Draw a paper's figures from finished runs.")
    parser.add_argument("--to", type=_path, help="where to; default: exports/figures")
    options, places = _parsed(parser, arguments)
    from shared.command import verbs

    domain, paper = options.words
    return verbs.draw(domain, paper, places, options.to)


def _film(arguments: Sequence[str]) -> int:
    parser = _parser("film", "DOMAIN PAPER", "Film the models of finished runs.")
    _takes_tier(parser)
    options, places = _parsed(parser, arguments)
    from shared.command import verbs

    domain, paper = options.words
    return verbs.film(domain, paper, options.tier, places)


def _export(arguments: Sequence[str]) -> int:
    parser = _parser("export", "RUN", "Write the model of a finished run, by folder or address.")
    parser.add_argument("--to", type=_path, help="where to; default: exports/ADDRESS")
    parser.add_argument("--domain", help="whose run it is, for folders outside --runs")
    options, places = _parsed(parser, arguments)
    from shared.command import verbs

    return verbs.export(options.words[0], options.domain, options.to, places)


def _evaluate(arguments: Sequence[str]) -> int:
    what = "Score a trained model, of this project or another, with a domain's protocols."
    parser = _parser("evaluate", "DOMAIN MODEL", what)
    add = parser.add_argument
    text = "vision, video: a folder of classes, or a data set; graph: a data set; text: tasks"
    add("--data", help=text)
    add("--protocol", type=_names, default=(), metavar="NAME,...", help="default: the domain's")
    text = "seed of a protocol's random draws (text: it has none); default: 0"
    add("--seed", type=int, default=0, help=text)
    text = "vision, video: omit files of the folder that cannot be decoded, and list them"
    add("--allow-missing", dest="skip_damaged", action="store_const", const=True, help=text)
    add("--out", type=_path, metavar="FILE.json", help="also write the numbers there")
    add = parser.add_argument_group("vision").add_argument
    add("--backbone", help="resnet50, any name of timm, ...; default: the ResNet that fits")
    stems = "imagenet, cifar, small, strided, small_padding_2"
    add("--stem", help=f"first layers: {stems}; default: what fits")
    add("--prefix", help="prefix of the keys to load; default: the only one that fits")
    add("--heads", type=_positive, help="attention heads of a transformer; default: timm's")
    add("--size", type=_positive, help="size of the images in pixels; default: the data's")
    text = "colour statistics to normalise with: a data set, or none; default: the data's"
    add("--statistics", help=text)
    add = parser.add_argument_group("video").add_argument
    add("--split", help="of UCF-101 or HMDB51: 1, 2, 3, or all, for their mean; default: 1")
    options, places = _parsed(parser, arguments)
    if options.data and _path(options.data).exists():
        options.data = str(_path(options.data))
    from shared.command import verbs

    return verbs.evaluate(options.words[0], _path(options.words[1]), options, places)


def _data(arguments: Sequence[str]) -> int:
    parser = _parser("data", "DOMAIN", "Download the missing data of a domain, verify the rest.")
    add = parser.add_argument
    add("--dataset", help="one dataset")
    text = "vision: also decode its images once, the shorter side reduced to SIDE pixels (256)"
    add("--prepare", type=_positive, nargs="?", const=256, metavar="SIDE", help=text)
    options, places = _parsed(parser, arguments)
    from shared.command import verbs

    return verbs.fetch(options.words[0], options.dataset, places, options.prepare)


def _verify(arguments: Sequence[str]) -> int:
    what = "Check every record and every finished run of the tables."
    parser = _parser("verify", "[DOMAIN]", what)
    add = parser.add_argument
    add("--rerun", type=_positive, metavar="N", help="run the cells of N records again")
    add("--pages", action="store_true", help="make text and CSV files again, and compare them")
    _takes_choice(parser)
    _takes_work(parser)
    options, places = _parsed(parser, arguments)
    choice = ("table", "row", "column", "seeds")
    stray = [name for name in choice if getattr(options, name) is not None]
    if stray and options.rerun is None:
        raise UserError(
            f"--{stray[0]} chooses what --rerun N runs again; add --rerun, or omit --{stray[0]}"
        )
    from shared.command import verbs

    return verbs.verify_records(next(iter(options.words), None), places, options)


# The verbs; without one the verb is "run".
VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "compare": _compare,
    "plan": _plan,
    "report": _report,
    "figures": _figures,
    "film": _film,
    "export": _export,
    "evaluate": _evaluate,
    "verify": _verify,
    "data": _data,
}


def _parser(verb: str, words: str, what: str) -> Parser:
    parser = Parser(prog=f"{program()} {verb}", description=what, allow_abbrev=False)
    parser.words = words.split()
    parser.add_argument("words", nargs="*", metavar=words or "WORD", help=argparse.SUPPRESS)
    parser.usage = f"%(prog)s {words} [OPTION ...]".replace("  ", " ")
    add = parser.add_argument_group("folders, relative to the current one").add_argument
    add("--data-root", type=_path, help="datasets; default: SUITE_DATA, else data/")
    add("--runs", type=_path, default=of_checkout("runs"), help="runs; default: runs/")
    text = "results and report; default: results/"
    add("--results", type=_path, default=of_checkout("results"), help=text)
    return parser


def _takes_tier(parser: Parser) -> None:
    text = f"{', '.join(TIERS)}; default: paper"
    parser.add_argument("--tier", type=_tier, default="paper", help=text)


def _takes_choice(parser: Parser, *, row: bool = True) -> None:
    add = parser.add_argument
    if row:
        text = "a row, by label or part of an address; may be repeated"
        add("--row", action="append", help=text)
    add("--table", help="one table, by number or name")
    add("--column", action="append", help="a column, by label; may be repeated")
    add("--seeds", type=_seeds, help="for example 0-4 or 0,2,5-7; default: those of the table")


def _takes_cells(parser: Parser) -> None:
    _takes_choice(parser)
    _takes_tier(parser)
    text = "cells by address, instead of DOMAIN PAPER"
    parser.add_argument("--cell", nargs="+", metavar="ADDRESS", help=text)


def _takes_work(parser: Parser) -> None:
    add = parser.add_argument
    add("--jobs", type=_positive, help="cells at a time; default: cores / threads, on a GPU one")
    add("--threads", type=_positive, default=1, help="threads of each cell; default: 1")
    add("--no-download", action="store_true", help="do not download missing data")
    add("--deterministic", action="store_true", help="bit-equal reruns on a GPU; slower")
    text = "omit files that are missing or cannot be decoded"
    add("--allow-missing", action="store_true", help=text)


def _takes_training(parser: Parser) -> None:
    add = parser.add_argument
    text = "change a field of the configuration, or objective.NUMBER; enters no table"
    add("--set", action="append", metavar="NAME=VALUE", default=[], help=text)
    text = "show a score of the encoder every N epochs (text: 100 N steps, rl: 20 N updates); "
    add("--watch", type=_positive, metavar="N", help=f"{text}enters no result")
    add("--again", action="store_true", help="move the chosen runs aside, and start over")


def _takes_cells_of_array(parser: Parser) -> None:
    text = "print the cells still to run here as N lines at most, each a task of an array job; "
    text += "default: 500, see docs/clusters.md"
    parser.add_argument("--cells", type=_positive, nargs="?", const=500, metavar="N", help=text)


def _parsed(parser: Parser, arguments: Sequence[str]) -> tuple[argparse.Namespace, cells.Places]:
    """The options and the folders that they name."""
    options, unknown = parser.parse_known_intermixed_args(arguments)
    for argument in unknown:
        name = argument.partition("=")[0]
        known = re.findall(r"--[\w-]+", parser.format_help())
        raise UserError(f"no option {name}{suggestion(name, known, 'there are')}")
    words = [] if getattr(options, "cell", None) else parser.words
    if options.words and words and words[0].strip("[]") == "DOMAIN":
        domain, *others = options.words
        known = [*cells.DOMAINS, *VERBS, *CHECKOUT_ONLY]
        near = suggestion(domain, known, "domains and verbs are")
        if others and others[0] in cells.DOMAINS:
            near = f": the domain comes first, as in {others[0]} {domain}"
        if domain not in cells.DOMAINS:
            raise UserError(f"no domain {domain!r}{near}")
    needed = [word for word in words if word[0] != "["]
    if "" in options.words or not len(needed) <= len(options.words) <= len(words):
        takes, got = " ".join(words) or "no words", shlex.join(options.words) or "none"
        raise UserError(f"{parser.prog} takes {takes}; got {got}; see: {parser.prog} --help")
    places = cells.Places(options.runs, options.results, data_root(options.data_root))
    folders = {"--runs": places.runs, "--results": places.results}
    folders["--data-root" if options.data_root else "SUITE_DATA"] = places.data
    for option, path in folders.items():
        if (path.exists() or path.is_symlink()) and not path.is_dir():
            raise UserError(f"{option} {path} is no folder; name one, or a new one")
    return options, places


def _say_first(options: argparse.Namespace) -> None:
    """Print a first line at once: importing torch and the tables takes a while."""
    if os.environ.get("RANK", "0") == "0":
        what = " ".join(options.cell or ()) or f"{'/'.join(options.words)}, {options.tier} tier"
        print(f"{what}: reading the tables", flush=True)


def _path(text: str) -> Path:
    """A path; a shell leaves ``~`` alone in ``--runs=~/runs``, and it is the home folder here."""
    if not text:  # it would be the current folder
        raise argparse.ArgumentTypeError("an empty path; name a file or folder")
    return Path(text).expanduser()


def _tier(text: str) -> str:
    if text not in TIERS:
        raise argparse.ArgumentTypeError(f"no tier {text!r}{suggestion(text, TIERS, 'there are')}")
    return text


def _seeds(text: str) -> tuple[int, ...]:
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        numbers = range(0)
        if first.isdecimal() and (last.isdecimal() or not dash):
            numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= 2**32 or len(seeds) + len(numbers) > MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of seeds like 0,2,5-7")
        seeds += numbers
    return tuple(dict.fromkeys(seeds))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, text.split(","))))


def _loss(text: str) -> tuple[Path, str, list[str]]:
    """File, function and settings of ``FILE.py:LOSS,NUMBER=VALUE,...``."""
    file, colon, rest = text.partition(".py:")
    name, *settings = rest.split(",")
    if not colon or not name or not all("=" in setting for setting in settings):
        raise argparse.ArgumentTypeError(f"{text!r} is not like FILE.py:LOSS,NUMBER=VALUE")
    return _path(f"{file}.py"), name, settings


def _row(text: str) -> tuple[str, list[str]]:
    """Row and settings of ``ROW:NAME=VALUE:NAME=VALUE``; labels and values may hold commas."""
    row, *settings = re.split(r":(?=\s*[A-Za-z_][\w.]*\s*=)", text)
    if not row.strip() or (not settings and ":" in text):
        raise argparse.ArgumentTypeError(f"{text!r} is not like ROW or ROW:NAME=VALUE")
    return row.strip(), [setting.strip() for setting in settings]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
