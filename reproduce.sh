#!/usr/bin/env bash
# Sets itself up on the first call (.venv, what the domain needs), then runs the command line.
# Needs bash, git and Python >= 3.11. Without arguments it says what it can do.
#
# The versions installed are those of requirements.lock, whose head says how it is made; with --latest
# as the first word, the newest that pyproject.toml allows, in .venv-latest.
# uv installs where there is one, with the build of torch that fits the hardware (UV_TORCH_BACKEND says
# otherwise); else pip, and also where pip is configured with an index and uv is not.
set -euo pipefail
called="./reproduce.sh$(printf ' %q' "$@")"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$here/.venv lock=$here/requirements.lock
[ "${1:-}" != --latest ] || { venv=$here/.venv-latest lock= && shift; }
log=$venv/setup.log
domains=graph,rl,text,video,vision

fail() {
  echo "error: $*" >&2
  exit 2
}

usage() { sed -n '/^USAGE = /,/^"""/{//!p;}' "$here/shared/command/reproduce.py"; }

# First those that the packages of every domain are built for: rl's labmaze ends at 3.12.
find_python() {
  local name
  for name in ${PYTHON:-python3.12 python3.11 python3 python}; do
    if "$name" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  fail "Python >= 3.11 is needed, and ${PYTHON:-none on PATH} is not; install it, or set PYTHON"
}

# Which extras the arguments need: the first word, or cell address, that names a domain with one.
# Records are checked without any extra; to run some of any domain anew takes all of them.
extras_for() {
  local word domain
  for word in "$@"; do
    case $word in
      test) echo "test,docs,$domains,pytorchvideo,wandb" && return ;;
      benchmark) echo "$domains,bench" && return ;;
      docs) echo "docs" && return ;;
    esac
    for domain in ${domains//,/ }; do
      case $word in "$domain" | "$domain"/* | */"$domain"/*) echo "$domain" && return ;; esac
    done
  done
  case "${1:-} $* " in "verify "*" --rerun"*) echo "$domains" ;; esac
}

# Everything an installer says lies in the log; a terminal shows it as well.
logged() {
  if [ -t 2 ]; then "$@" 2>&1 </dev/null | tee -a "$log" >&2; else "$@" >>"$log" 2>&1 </dev/null; fi
}

# Not where an index or folder of packages is named in pip's configuration, and none in uv's variables.
uv_install() {
  command -v uv >/dev/null || return
  compgen -e UV_ | grep -qE 'INDEX|FIND_LINKS' ||
    ! "$venv/bin/python" -m pip config list 2>/dev/null | grep -qE 'index-url|find-links' || return
  UV_TORCH_BACKEND=${UV_TORCH_BACKEND:-auto} \
    logged uv pip install --python "$venv/bin/python" "$@"
}

# Whether a set that holds these extras was installed after the last change of what names versions.
installed() {
  local stamp extra
  [ -x "$venv/bin/python" ] || return
  for stamp in "$venv"/.installed-*; do
    [[ $stamp -nt $here/pyproject.toml && (-z $lock || $stamp -nt $lock) ]] || continue
    for extra in ${1//,/ }; do
      [[ ,${stamp##*/.installed-}, = *,"$extra",* ]] || continue 2
    done
    return 0
  done
  return 1
}

# One stamp per set of extras; a changed pyproject.toml or lock installs anew.
install() {
  local extras=$1 python why
  ! installed "$extras" || return 0
  [ -w "$here" ] ||
    fail "$here cannot be written to, and the first call sets up ${venv##*/} there; copy it to a" \
      "folder of your own and call its reproduce.sh"
  # Its Python may be out of this machine's reach alone, with runs elsewhere.
  [ ! -e "$venv" ] || [ -x "$venv/bin/python" ] ||
    fail "$venv has no Python that is found here; delete it unless another machine uses it"
  python=$venv/bin/python
  [ -x "$python" ] || python=$(find_python)
  if [ "$extras" = rl ] && "$python" -c "import sys; sys.exit(sys.version_info < (3, 13))"; then
    fail "rl needs Python 3.11 or 3.12, for which DM Control's labmaze is built, and $python is" \
      "$("$python" --version); install one, delete $venv, and set PYTHON to it"
  fi
  mkdir -p "$venv" && : >"$log"
  echo "setting up $venv for ${extras:-the core} by $("$python" --version), a minute or more; $log" >&2
  [ -x "$venv/bin/python" ] || logged "$python" -m venv "$venv" || {
    rm -rf "$venv"
    fail "$python cannot make virtual environments (on Debian: apt-get install python3-venv)"
  }
  set -- ${lock:+--constraint "$lock"} --editable "$here${extras:+[$extras]}"
  uv_install "$@" || logged "$venv/bin/python" -m pip install --no-compile "$@" || {
    why=$(grep -i '^ *error' "$log" | tail -n 1) || true
    fail "the installation failed (${why:-it gave no reason}); all that was said: $log;" \
      "the same command tries again"
  }
  touch "$venv/.installed-${extras:-core}"
  echo "set up in $SECONDS s" >&2
}

# The fast tests; after --all every test, after --gpu those that need a GPU. Further words are
# pytest's.
run_tests() {
  local part=(-m "not slow") processes=logical
  case ${1:-} in
    --all) shift && part=(--durations=40) ;;
    --gpu) shift && part=(-m cuda) processes=0 ;;
  esac
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
install "$(extras_for "$@")"
case ${1:-} in
  test) cd "$here" && shift && run_tests "$@" ;;
  # Losses beside other implementations, then a training step of each domain; --write puts the losses
  # into the documents instead.
  benchmark) cd "$here" && shift
    "$venv/bin/python" benchmarks/losses.py "$@"
    [ "${1:-}" != --write ] || exit 0
    exec "$venv/bin/python" benchmarks/steps.py "$@"
    ;;
  # The documents as a site, in build/docs; --serve shows it and follows changes.
  docs) cd "$here" && shift
    what=build
    [ "${1:-}" != --serve ] || { shift && what=serve; }
    PYTHONPATH=$here NO_MKDOCS_2_WARNING=1 exec "$venv/bin/python" -m mkdocs $what "$@"
    ;;
esac
# -P: no module is taken from the current folder.
SUITE_COMMAND=$called exec "$venv/bin/python" -P -m shared "$@"
