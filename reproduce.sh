#!/usr/bin/env bash
# Sets itself up on the first call (.venv, what the domain needs), then runs the command line.
# Needs bash, git and Python >= 3.11. Without arguments it says what it can do.
#
# The versions installed are those of requirements.lock; with --latest as the first word, the newest
# that pyproject.toml allows, in .venv-latest. The lock's head says how it is made. It holds no
# hashes: builds of torch for CPUs and for CUDA are one version in different files.
# The build of torch fits the hardware (UV_TORCH_BACKEND says otherwise), unless pip's configuration
# names an index of its own, which then decides.
set -euo pipefail
called="./reproduce.sh$(printf ' %q' "$@")"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
from=$PWD # paths that are given are as seen from there
cd "$here"
venv=$here/.venv lock=requirements.lock
if [ "${1:-}" = --latest ]; then
  venv=$here/.venv-latest lock=
  shift
fi
log=$venv/setup.log

say() { echo "$*" >&2; }

fail() {
  say "error: $*"
  exit 2
}

usage() { sed -n '/^USAGE = /,/^"""/{//!p;}' shared/command/reproduce.py; }

# First among those that the packages of every domain are built for: rl's labmaze ends at 3.12.
find_python() {
  local below name
  for below in "3, 13" "4,"; do
    for name in ${PYTHON:-python3 python3.12 python3.11 python3.13 python}; do
      if "$name" -c "import sys; sys.exit(not (3, 11) <= sys.version_info < ($below))" 2>/dev/null
      then
        command -v "$name"
        return
      fi
    done
  done
  fail "Python >= 3.11 is needed, and ${PYTHON:-none on PATH} is not; install it, or set PYTHON"
}

need_to_write() {
  [ -w "$1" ] ||
    fail "$1 cannot be written to, and $2; copy the checkout to a folder of your own and call its" \
      "reproduce.sh"
}

# Which extras the arguments need: the first word, or cell address, that names a domain with one.
extras_for() {
  for word in "$@"; do
    case $word in
      test) echo "test,docs,graph,rl,text,video,vision,pytorchvideo,wandb" && return ;;
      benchmark) echo "graph,rl,text,video,vision,bench" && return ;;
      docs) echo "docs" && return ;;
      graph | graph/* | */graph/*) echo "graph" && return ;;
      rl | rl/* | */rl/*) echo "rl" && return ;;
      text | text/* | */text/*) echo "text" && return ;;
      video | video/* | */video/*) echo "video" && return ;;
      vision | vision/* | */vision/*) echo "vision" && return ;;
    esac
  done
  # Records are checked without any extra; to run some of any domain anew takes all of them.
  if [[ ${1:-} = verify && " $* " = *" --rerun"* ]]; then
    echo "graph,rl,text,video,vision"
  fi
}

# What extras download beside torch, on Linux.
megabytes() {
  case $1 in
    "") echo 90 ;; graph) echo 105 ;; vision) echo 135 ;; text) echo 145 ;; rl) echo 215 ;;
    video) echo 230 ;; docs) echo 105 ;; *) echo 420 ;;
  esac
}

# Shows how far an installer is: on a terminal one line, rewritten; elsewhere one in five seconds.
show() {
  local line found=0 fetched=0 last=-5
  while read -r line; do
    case $line in
      *.metadata*) continue ;;
      Collecting*) found=$((found + 1)) ;;
      Processing*) found=$((found + 1)) fetched=$((fetched + 1)) ;; # lies in a local folder
      Downloading* | Using\ cached*) fetched=$((fetched + 1)) ;;
      Resolved* | Prepared* | Installed* | Installing\ collected*) ;;
      *) continue ;;
    esac
    [ "$found" -eq 0 ] || line="[$fetched of $found] $line"
    if [ -t 2 ]; then
      printf '\r\033[K%4d s  %.70s' "$SECONDS" "$line" >&2
    elif [ $((SECONDS - last)) -ge 5 ]; then
      last=$SECONDS
      printf '%4d s  %.70s\n' "$SECONDS" "$line" >&2
    fi
  done
  [ ! -t 2 ] || printf '\r\033[K' >&2
}

# Everything an installer says lies in the log, its warnings too.
logged() { "$@" 2>&1 </dev/null | tee -a "$log" | show; }

# pip's configuration as variables of uv, which does not read it: NAME=VALUE ..., quoted; nothing where
# uv has been told of an index itself. Fails where there are options that uv lacks.
uv_settings() {
  ! compgen -e UV_ | grep -E 'INDEX|FIND_LINKS' >/dev/null || return 0
  "$venv/bin/python" -m pip config list 2>/dev/null | "$venv/bin/python" -c "
import ast, shlex, sys
names = {
    'index-url': 'UV_DEFAULT_INDEX', 'extra-index-url': 'UV_INDEX', 'find-links': 'UV_FIND_LINKS',
    'constraint': 'UV_CONSTRAINT', 'trusted-host': 'UV_INSECURE_HOST', 'cert': 'SSL_CERT_FILE',
}
without_effect = 'cache-dir default-timeout disable-pip-version-check no-color no-input progress-bar'
without_effect += ' quiet require-virtualenv retries root-user-action timeout'
lines = [line.partition('=') for line in sys.stdin]
found = {'UV_INDEX_STRATEGY': ['unsafe-best-match']}  # among indexes as pip chooses
for wanted in ('global', 'install', ':env:'):  # what comes later counts
    for key, _, value in lines:
        section, _, option = key.rpartition('.')
        if section == wanted and option not in without_effect.split():
            found[names[option]] = ast.literal_eval(value).split()
for name, words in found.items():
    text = (',' if name == 'UV_FIND_LINKS' else ' ').join(words)
    print(shlex.quote(f'{name}={text}'), end=' ')
" 2>/dev/null
}

# uv is faster than pip, and takes the build of torch that fits the hardware: Linux's default is CUDA's,
# 2.5 GB that are of no use without a driver. Where there is no uv, pip installs it.
find_uv() {
  command -v uv || {
    logged "$venv/bin/python" -m pip install --disable-pip-version-check uv && echo "$venv/bin/uv"
  } || true
}

# In a shell of its own: the variables are uv's alone.
uv_install() (
  command=("$uv" pip install --python "$venv/bin/python" "$@")
  [ -z "$settings" ] || eval "export $settings"
  case $settings in *UV_INDEX=* | *UV_DEFAULT_INDEX=* | *UV_FIND_LINKS=*) ;; *)
    # The build of torch that fits the hardware, from PyTorch's own index.
    export UV_TORCH_BACKEND=${UV_TORCH_BACKEND:-auto}
    if ! logged "${command[@]}" --dry-run; then
      say "torch's build for this hardware cannot be looked up (is PyTorch's index out of reach?):" \
        "the registry's is taken"
      unset UV_TORCH_BACKEND
    fi
    ;;
  esac
  logged "${command[@]}"
)

pip_install() {
  "$venv/bin/python" -c "import pip" 2>/dev/null || logged "$venv/bin/python" -m ensurepip
  logged "$venv/bin/python" -m pip install --disable-pip-version-check --no-compile "$@"
}

# Whether a set that holds these extras was installed after the last change of what names versions.
installed() {
  local stamp extra
  [ -x "$venv/bin/python" ] || return
  for stamp in "$venv"/.installed-*; do
    [ "$stamp" -nt pyproject.toml ] || continue
    [ -z "$lock" ] || [ "$stamp" -nt "$lock" ] || continue
    for extra in ${1//,/ }; do
      case ,${stamp##*/.installed-}, in *,"$extra",*) ;; *) continue 2 ;; esac
    done
    return 0
  done
  return 1
}

# One stamp per set of extras; a changed pyproject.toml or lock installs anew.
install() {
  local extras=$1 stamp=$venv/.installed-${1:-core} python settings uv installer torch why
  ! installed "$extras" || return 0
  # The Python that it links to may be gone, or out of this machine's reach, with runs elsewhere.
  if [ -L "$venv/bin/python" ] && [ ! -e "$venv/bin/python" ]; then
    fail "$venv is of a Python that is not found here" \
      "($(sed -n 's/^home *= *//p' "$venv/pyvenv.cfg" 2>/dev/null)); other machines may be using it:" \
      "delete $venv if none does, else make that Python available or use a copy of the checkout"
  fi
  [ -x "$venv/bin/python" ] || rm -rf "$venv" 2>/dev/null || true # what an aborted set-up left
  why=$({ mkdir -p "$venv" && : >"$log"; } 2>&1) ||
    fail "$here cannot be written to (${why##*: }), and the first call sets up ${venv##*/} there;" \
      "copy it to a folder of your own and call its reproduce.sh"
  python=$(find_python)
  [ ! -x "$venv/bin/python" ] || python=$venv/bin/python
  if [ "$extras" = rl ] && "$python" -c "import sys; sys.exit(sys.version_info < (3, 13))"; then
    fail "rl needs Python 3.11 or 3.12, for which DM Control's labmaze is built, and $python is" \
      "$("$python" --version); install one, delete $venv, and set PYTHON to it"
  fi
  say "setting up $venv for ${extras:-the core}: $("$python" --version)," \
    "versions of ${lock:-today}"
  if [ ! -x "$venv/bin/python" ]; then
    logged "$python" -m venv "$venv" ||
      { command -v uv >/dev/null && logged uv venv --seed --allow-existing --python "$python" "$venv"; } || {
      rm -rf "$venv"
      fail "$python cannot make virtual environments (on Debian: apt-get install python3-venv)"
    }
  fi
  uv=
  settings=$(uv_settings) && uv=$(find_uv)
  installer=${uv:-pip}
  torch=", and torch: 200 MB for CPUs, 2700 MB with CUDA"
  ! compgen -G "$venv/lib/python*/site-packages/torch" >/dev/null || torch=
  say "to download: up to $(megabytes "$extras") MB$torch (by ${installer##*/})"
  set -- ${lock:+--constraint "$lock"} --editable ".${extras:+[$extras]}"
  if ! { [ "$uv" ] && uv_install "$@"; }; then
    [ -z "$uv" ] || say "uv could not install it (see $log); pip tries"
    pip_install "$@" || {
      why=$(grep -i '^ *error' "$log" | tail -n 1) || true
      fail "the installation failed (${why:-it gave no reason}); all that was said: $log;" \
        "the same command tries again"
    }
  fi
  # Here, on all cores, what may be imported: not tests, tools, and hundreds of models.
  local rest='tests|testing|_inductor|pip|mypyc?|setuptools|OpenGL|lexers|torchmetrics|pytorch_lightning'
  "$venv/bin/python" -m compileall -q -j 0 -x "site-packages/(.*/)?($rest|transformers/models)/" \
    "$venv"/lib/python*/site-packages >>"$log" 2>&1 || true
  touch "$stamp"
  say "set up in $SECONDS s"
}

# The fast tests; after --all every test, after --gpu those that need a GPU. Further words are
# pytest's.
run_tests() {
  local part=(-m "not slow") processes=logical
  case ${1:-} in
    --all) shift && part=(--durations=40) ;;
    --gpu)
      shift && part=(-m cuda) processes=0
      case " $* " in *" --co "* | *" --collect-only "*) ;; *)
        "$venv/bin/python" -c "from shared.command.devices import need; need('test --gpu')" ||
          exit 2
        ;;
      esac
      ;;
  esac
  need_to_write "$here" "tests and linters keep caches there"
  if [ $processes = logical ]; then
    "$venv/bin/ruff" check .
    "$venv/bin/ruff" format --check .
    "$venv/bin/mypy"
  fi
  # tests/conftest.py says how many; more than eight would want more memory than they save time.
  exec "$venv/bin/python" -m pytest --numprocesses $processes --maxprocesses 8 --dist worksteal \
    "${part[@]}" "$@"
}

case ${1:-} in
  "") usage >&2 && exit 2 ;;
  -h | --help) [ -x "$venv/bin/python" ] || { usage && exit; } ;;
esac
extras=$(extras_for "$@")
install "$extras"
if [ "${1:-}" = test ]; then
  shift
  run_tests "$@"
fi
# Losses beside other implementations, then a training step of each domain; --write puts the losses
# into the documents instead.
if [ "${1:-}" = benchmark ]; then
  shift
  "$venv/bin/python" benchmarks/losses.py "$@"
  [ "${1:-}" != --write ] || exit 0
  exec "$venv/bin/python" benchmarks/steps.py "$@"
fi
# The documents as a site, in build/docs; --serve shows it and follows changes.
if [ "${1:-}" = docs ]; then
  shift
  verb=build
  [ "${1:-}" != --serve ] || { shift && verb=serve; }
  built=$here/build
  [ -e "$built" ] || built=$here
  [ $verb = serve ] || need_to_write "$built" "the site is built there"
  PYTHONPATH=$here NO_MKDOCS_2_WARNING=1 exec "$venv/bin/python" -m mkdocs "$verb" "$@"
fi
export SUITE_COMMAND=$called
[ "$from" = "$here" ] || export SUITE_FROM=$from
exec "$venv/bin/python" -m shared "$@"
