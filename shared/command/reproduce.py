"""The command line: its words and options; what they ask for is done by the other modules.

Nothing heavy is imported before the words are understood: a mistyped one is answered at once.

Exit codes: 0 all is done; 1 a cell failed or its data are missing; 2 the input cannot be used;
75 interrupted, the same command goes on.
"""

import argparse
import contextlib
import io
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from shared.command import domains
from shared.errors import UserError, describe_os_error, program, suggestion
from shared.experiment.tables import TIERS

if TYPE_CHECKING:
    from shared.command.places import Places

USAGE = """\
Reproduces four papers on margins in contrastive learning (LMCL, CLLR, MMCL and
"margins") in five domains: vision, text, rl, graph, video.

Run the tables of a paper in a domain:
  ./reproduce.sh graph mmcl                 all of them, then print them
  ./reproduce.sh graph mmcl --tier smoke    on embedded data, in about a minute
  ./reproduce.sh graph mmcl --table 4 --row MMCL --column MUTAG --seeds 0-4
  ./reproduce.sh graph mmcl --set epochs=3           with settings of your own
  ./reproduce.sh graph mmcl --with losses.py:mine    with a loss of your own
  ./reproduce.sh plan graph mmcl            what is done; time, memory and disk
  ./reproduce.sh data graph                 download and check the data
Use what was run:
  report      write results/ from the finished runs
  verify      check every record; --rerun 3 runs three cells again
  noise       run cells again with other instructions of the processor
  status      what became of the cells sent to Slurm (run --help: --slurm)
  explain     one cell: the paper, the configuration, the record, the verdict
  figures     the figures of a paper       film      an episode of each agent
  export      the model of a run           evaluate  any model, by our protocols
Work on it:
  test        the fast tests; --all: every test; --gpu: those that need a GPU
  benchmark   time the losses and a training step of each domain
  docs        the documentation and results as a site; --serve shows it
All options of a verb: ./reproduce.sh plan --help; of a run: run --help
"""
INTERRUPTED = 75  # as shared.experiment.runs has it, which takes seconds to be imported
STOPPED = "interrupted; the same command starts again"
STARTED = "SUITE_PROCESSES"  # set in processes that --processes has started
FROM = "SUITE_FROM"  # where reproduce.sh was called, if not in the checkout
CHECKOUT_ONLY = ("test", "benchmark", "docs")
# Older spellings of verbs.
FLAGS = {"--plan": "plan", "--figures": "figures", "--video": "film"}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything here does."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong.

        Raises:
            UserError: always.
        """
        raise UserError(f"{message}; see: {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a folder's name may be no UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _imports_end_cleanly():
            return _main(list(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
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
    ends in ``std::terminate`` rather than in an exception. Nothing has been started by then.
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
    if not arguments:
        print(_usage(), end="", file=sys.stderr)
        return 2
    if arguments[0] == "help" and arguments[1:2] and arguments[1] in VERBS:
        return VERBS[arguments[1]](["--help"])
    if arguments[0] in ("-h", "--help", "help"):
        print(_usage(), end="")
        return 0
    if arguments[0] in CHECKOUT_ONLY:  # reproduce.sh answers them itself
        raise UserError(
            f"{arguments[0]} needs the checkout: clone the repository, then "
            f"./reproduce.sh {arguments[0]}"
        )
    if arguments[0] in ("--version", "version"):
        print(_version())
        return 0
    verb = "run"
    if arguments[0] in VERBS:
        verb = arguments.pop(0)
    elif flags := [each for each in arguments if each in FLAGS]:
        verb = FLAGS[flags[0]]
        arguments.remove(flags[0])
    elif arguments[0].startswith("-") and (late := [each for each in arguments if each in VERBS]):
        raise UserError(f"say the verb first: {program()} {late[0]} ...")
    return VERBS[verb](arguments)


def _usage() -> str:
    """``USAGE`` as called here; installed without the checkout, what needs that is left out."""
    if program() == "./reproduce.sh":
        return USAGE
    before, _, rest = USAGE.partition("Work on it:\n")
    checkout = f"In a checkout alone, by ./reproduce.sh: {', '.join(CHECKOUT_ONLY)}\n"
    return (
        (before + checkout + rest[rest.index("All options") :])
        .replace("  ./reproduce.sh", "  margins")
        .replace("verb: ./reproduce.sh", "verb: margins")
    )


def _version() -> str:
    """The version, and in a checkout the commit."""
    from shared import __version__
    from shared.experiment.runs import commit

    here = commit()
    changes = ", with changes" if here["dirty"] else ""
    return f"margins-in-contrastive-learning {__version__} ({here['commit'][:12]}{changes})"


def _run(arguments: Sequence[str]) -> int:
    parser = _parser("run", "DOMAIN PAPER", "Run the cells of a paper's tables, and print them.")
    _takes_cells(parser)
    _takes_work(parser)
    add = parser.add_argument
    add("--again", action="store_true", help="move the chosen runs aside, and run them anew")
    add(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        default=[],
        help="change a field of the configuration, or objective.NUMBER; outside the tables",
    )
    add(
        "--with",
        dest="loss",
        type=_loss,
        metavar="FILE.py:LOSS[,NUMBER=...]",
        help="a loss of yours as the row 'mine'; the baseline it is paired with: --row",
    )
    add(
        "--processes",
        type=_positive,
        metavar="N",
        help="that share the batch of one run, each with a GPU where there are; with --cell",
    )
    _takes_executor(parser)
    options, places = _parsed(parser, arguments)
    _check_executor(options)
    together = _check_processes(options)
    _say_first(options)
    from shared.command import own, running
    from shared.command.domains import choose

    if together > 1:
        from shared.command import processes

        work = processes.take_part if "RANK" in os.environ else processes.launch
        return work(choose(options), places(), options, arguments)
    if options.loss is not None:
        return own.run_with_loss(options, places())
    if options.set:
        return own.run_with_settings(options, places())
    return running.run_cells(choose(options), places(), options)


def _plan(arguments: Sequence[str]) -> int:
    parser = _parser("plan", "DOMAIN PAPER", "Say what would run, and what it takes; run nothing.")
    _takes_cells(parser)
    _takes_work(parser)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    options, places = _parsed(parser, arguments)
    if options.again:
        raise UserError("--again moves runs aside, --plan touches nothing; leave one of them out")
    from shared.command import running
    from shared.command.domains import choose

    return running.plan_cells(choose(options), places(), options)


def _noise(arguments: Sequence[str]) -> int:
    parser = _parser(
        "noise", "DOMAIN PAPER", "Run cells again with other instructions of the processor."
    )
    _takes_cells(parser)
    _takes_work(parser)
    parser.add_argument("--again", action="store_true", help="see run --help")
    options, _ = _parsed(parser, arguments)
    from shared.command import noise
    from shared.command.domains import choose

    choose(options)
    runs = options.runs.absolute() if FROM in os.environ else options.runs
    return noise.repeat(arguments, runs)


def _explain(arguments: Sequence[str]) -> int:
    parser = _parser(
        "explain", "CELL", "A cell on one page: the paper, the loss, the record, the verdict."
    )
    options, places = _parsed(parser, arguments, words=("CELL",))
    from shared.command import explain

    return explain.print_page(options.words[0], places())


def _status(arguments: Sequence[str]) -> int:
    parser = _parser("status", "", "Show what became of the cells that were submitted.")
    _, places = _parsed(parser, arguments, words=())
    from shared.command import slurm

    return slurm.print_status(places())


def _report(arguments: Sequence[str]) -> int:
    parser = _parser("report", "", "Write results/ from every finished run of the tables.")
    add = parser.add_argument
    add("--latex", action="store_true", help="every table as LaTeX, too")
    add("--from", dest="source", type=_path, help="a folder of finished runs made elsewhere")
    options, places = _parsed(parser, arguments, words=())
    from shared.command import verbs

    return verbs.report(places(), options.source, tex=options.latex)


def _figures(arguments: Sequence[str]) -> int:
    parser = _parser("figures", "DOMAIN PAPER", "Draw a paper's figures from finished runs.")
    parser.add_argument("--to", type=_path, help="where to; default: exports/figures")
    options, places = _parsed(parser, arguments, words=("DOMAIN", "PAPER"))
    from shared.command import verbs

    domain, paper = options.words
    return verbs.draw(domain, paper, places(), options.to)


def _film(arguments: Sequence[str]) -> int:
    parser = _parser("film", "DOMAIN PAPER", "Film the models of finished runs.")
    _takes_tier(parser)
    options, places = _parsed(parser, arguments, words=("DOMAIN", "PAPER"))
    from shared.command import verbs

    domain, paper = options.words
    return verbs.film(domain, paper, options.tier, places())


def _export(arguments: Sequence[str]) -> int:
    parser = _parser("export", "RUN", "Write the model of a finished run, by folder or address.")
    add = parser.add_argument
    add("--to", type=_path, help="where to; default: exports/ADDRESS")
    add("--domain", help="whose run it is, for folders outside --runs")
    options, places = _parsed(parser, arguments, words=("RUN",))
    from shared.command import verbs

    run = options.words[0]
    return verbs.export(run, _path(run), options.domain, options.to, places())


def _evaluate(arguments: Sequence[str]) -> int:
    what = "Score a trained model, this project's or another's, by a domain's protocols."
    parser = _parser("evaluate", "DOMAIN MODEL", what)
    add = parser.add_argument
    add(
        "--data",
        help="vision, video: a folder of classes, or a data set; graph: a data set; text: tasks",
    )
    add("--protocol", type=_names, default=(), metavar="NAME,...", help="default: the domain's")
    add("--seed", type=int, default=0, help="of everything random in a protocol; default: 0")
    add(
        "--skip-damaged",
        action="store_const",
        const=True,
        help="vision, video: leave out files of the folder that cannot be decoded, and list them",
    )
    add("--out", type=_path, metavar="FILE.json", help="where the numbers go, too")
    add = parser.add_argument_group("vision").add_argument
    add("--backbone", help="resnet50, any name of timm, ...; default: the ResNet that fits")
    add("--stem", help="its first layers: imagenet, cifar, small, strided; default: what fits")
    add("--prefix", help="of the keys that count; default: that under which most fit")
    add("--size", type=_positive, help="of the images in pixels; default: the data's")
    add("--statistics", help="whose colours normalise: a data set, or none; default: the data's")
    options, places = _parsed(parser, arguments, words=("DOMAIN", "MODEL"))
    if options.data and _path(options.data).exists():
        options.data = str(_path(options.data))
    from shared.command import scoring

    return scoring.evaluate(options.words[0], _path(options.words[1]), options, places())


def _data(arguments: Sequence[str]) -> int:
    parser = _parser("data", "DOMAIN", "Fetch what is missing of a domain's data, verify the rest.")
    parser.add_argument("--dataset", help="one dataset")
    options, places = _parsed(parser, arguments, words=("DOMAIN",))
    from shared.command import verbs

    return verbs.fetch(options.words[0], options.dataset, places())


def _verify(arguments: Sequence[str]) -> int:
    parser = _parser("verify", "[DOMAIN]", "Check every record and every finished run.")
    add = parser.add_argument
    add("--rerun", type=_positive, metavar="N", help="records whose cells are run anew")
    add("--draw", type=int, default=0, help="with --rerun: another number, other cells")
    _takes_choice(parser)
    _takes_work(parser)
    options, places = _parsed(parser, arguments, words=("[DOMAIN]",))
    from shared.command import verbs

    return verbs.verify_records(options.words[0] if options.words else None, places(), options)


# What the first word may be; without one of them it is "run".
VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "plan": _plan,
    "explain": _explain,
    "noise": _noise,
    "status": _status,
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
    parser.add_argument("words", nargs="*", metavar=words or "WORD", help=argparse.SUPPRESS)
    parser.usage = f"%(prog)s {words} [OPTION ...]".replace("  ", " ")
    add = parser.add_argument_group("places, as seen from where you stand").add_argument
    add("--data-root", type=_path, help="where datasets lie; default: SUITE_DATA, else data/")
    add("--runs", type=_path, default=Path("runs"), help="where runs lie")
    add("--results", type=_path, default=Path("results"), help="where the report goes")
    return parser


def _takes_tier(parser: Parser) -> None:
    parser.add_argument(
        "--tier", type=_tier, default="paper", help=f"{', '.join(TIERS)}; default: paper"
    )


def _takes_choice(parser: Parser) -> None:
    add = parser.add_argument
    add("--table", help="one table, by number or name")
    add("--row", help="one row, by label")
    add("--column", help="one column, by label")
    add("--seeds", type=_seeds, help="for example 0-4 or 0,2,5-7; default: those of the table")


def _takes_cells(parser: Parser) -> None:
    _takes_choice(parser)
    _takes_tier(parser)
    parser.add_argument("--cell", metavar="ADDRESS", help="one cell, in place of DOMAIN PAPER")


def _takes_work(parser: Parser) -> None:
    add = parser.add_argument
    add("--jobs", type=_positive, help="cells at a time; default: cores / threads, on a GPU one")
    add("--threads", type=_positive, default=1, help="threads of each cell; default: 1")
    add("--deterministic", action="store_true", help="the same bits each time on a GPU, slower")
    add("--no-download", action="store_true", help="do not fetch missing data")
    add(
        "--allow-missing",
        "--skip-damaged",
        action="store_true",
        help="leave out files that data sets lack or that cannot be decoded",
    )
    add("--minutes", type=_minutes, help="save and stop then; the same command goes on")


def _takes_executor(parser: Parser) -> None:
    add = parser.add_argument_group("as tasks of a cluster").add_argument
    add("--slurm", action="store_true", help="as an array job")
    add("--partition", help="where; default: the cluster's")
    add("--time", type=_positive, metavar="MINUTES", help="of a task; default: as planned")
    add("--memory", type=_positive, metavar="GB", help="of a task; default: as planned")
    add("--gpus", type=_positive, help="of a task; default: none")
    add("--cores", type=_positive, help="of a task; default: --threads")
    add("--array-limit", type=_positive, help="tasks at a time; default: 64")


def _check_executor(options: argparse.Namespace) -> None:
    """Refuse options of Slurm without it, and Slurm for runs of one's own."""
    names = ("partition", "time", "memory", "gpus", "cores", "array_limit")
    stray = [name for name in names if getattr(options, name) is not None]
    if stray and not options.slurm:
        name = stray[0].replace("_", "-")
        raise UserError(f"--{name} is of --slurm; add that, or leave --{name} out")
    if options.slurm and options.minutes:
        raise UserError("--minutes is of runs that this command waits for; of a task it is --time")
    if options.slurm and (options.set or options.loss):
        raise UserError("--slurm is for cells of the tables; leave --set and --with out, or it")


def _check_processes(options: argparse.Namespace) -> int:
    """How many processes work on the run: torchrun's, or those asked for."""
    started = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 0
    asked = options.processes or started or 1
    if started and asked != started:
        raise UserError(f"torchrun has started {started} processes; leave --processes out")
    if asked > 1 and (not options.cell or options.set or options.loss or options.slurm):
        raise UserError(
            f"{asked} processes share one run of the tables; name it by --cell ADDRESS, without "
            f"--set, --with and --slurm"
        )
    if asked > 1 and options.minutes:
        raise UserError(f"--minutes is of runs of one process, not of {asked}; leave one out")
    return asked


def _parsed(
    parser: Parser, arguments: Sequence[str], words: tuple[str, ...] | None = None
) -> tuple[argparse.Namespace, "Callable[[], Places]"]:
    """The options, and what makes the places, which needs more than the words do.

    Args:
        parser: of the verb.
        arguments: what follows the verb.
        words: what the verb is followed by; None for DOMAIN PAPER, or neither and ``--cell``.
    """
    options, unknown = parser.parse_known_intermixed_args(arguments)
    known = parser.format_help().replace(",", " ").split()
    for each in unknown:
        name = each.partition("=")[0]
        has = [option for option in known if option.startswith("--")]
        raise UserError(f"no option {name}{suggestion(name, has, 'there are')}")
    given = len(options.words)
    if words is None:
        words = () if options.cell else ("DOMAIN", "PAPER")
    if options.words and words and "DOMAIN" in words[0]:
        _check_domain(*options.words)
    if not len([each for each in words if each[0] != "["]) <= given <= len(words):
        raise UserError(f"say what to run:\n{_usage()}".rstrip())
    return options, lambda: _places(options)


def _check_domain(word: str, *others: str) -> None:
    """Refuse what is neither a domain nor, as the first word, a verb."""
    if word not in domains.DOMAINS:
        near = suggestion(word, [*domains.DOMAINS, *VERBS, "docs", "test"])
        if not near.startswith(":"):
            near = suggestion(word, domains.DOMAINS, "domains are")
            if others and others[0] in domains.DOMAINS:
                near = f": the domain comes first, as in {others[0]} {word}"
        raise UserError(f"no domain {word!r}{near}")


def _places(options: argparse.Namespace) -> "Places":
    from shared.command.places import Places
    from shared.experiment.data import data_root
    from shared.experiment.runs import check_name

    check_name(options.runs)
    named = os.environ.get("SUITE_DATA")
    data = options.data_root or (_path(named) if named else None)
    places = Places(options.runs, options.results, data_root(data))
    folders = {"--runs": places.runs, "--results": places.results}
    folders["--data-root" if options.data_root else "SUITE_DATA"] = places.data
    for option, path in folders.items():
        if path.exists() and not path.is_dir():
            raise UserError(f"{option} {path}: a file; name a folder")
    return places


def _say_first(options: argparse.Namespace) -> None:
    """The first line, at once: torch and the tables take a while."""
    if os.environ.get("RANK", "0") != "0" or STARTED in os.environ:
        return
    what = options.cell or f"{'/'.join(options.words)}, {options.tier} tier"
    print(f"{what}: reading the tables", flush=True)


def _path(text: str) -> Path:
    """A path as seen from where the user stands: reproduce.sh runs in the checkout."""
    return Path(os.environ.get(FROM, ""), text)


def _tier(text: str) -> str:
    if text not in TIERS:
        raise argparse.ArgumentTypeError(f"no tier {text!r}{suggestion(text, TIERS, 'there are')}")
    return text


def _seeds(text: str) -> tuple[int, ...]:
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        some = range(0)
        if first.isdecimal() and (last.isdecimal() or not dash):
            some = range(int(first), int(last or first) + 1)
        if not some:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of seeds like 0,2,5-7")
        seeds += some
    return tuple(dict.fromkeys(seeds))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, text.split(","))))


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of minutes")
    return minutes


def _loss(text: str) -> tuple[Path, str, list[str]]:
    """File, function and settings of ``FILE.py:LOSS,NUMBER=VALUE,...``."""
    file, colon, rest = text.partition(".py:")
    name, *settings = rest.split(",")
    if not colon or not name or not all("=" in each for each in settings):
        raise argparse.ArgumentTypeError(f"{text!r} is not like FILE.py:LOSS,NUMBER=VALUE")
    return _path(f"{file}.py"), name, settings


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
