#!/usr/bin/env bash
# Sets itself up on the first call (.venv, what the domain needs), then runs the command line.
# Needs bash, git and Python >= 3.11. Without arguments it says what it can do.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$here/.venv

fail() {
  echo "error: $*" >&2
  exit 2
}

find_python() {
  for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
    if command -v "$name" >/dev/null &&
      "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  fail "Python >= 3.11 is needed and was not found; install it, or name it in PYTHON"
}

# Which extras the arguments need: the first word, or cell address, that names a domain with one.
extras_for() {
  for word in "$@"; do
    case $word in
      test) echo "test,graph,rl,text,video,vision" && return ;;
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

# One stamp per set of extras; a changed pyproject.toml installs anew.
install() {
  local extras=$1 stamp
  stamp=$venv/.installed-${extras:-core}
  [ "$stamp" -nt "$here/pyproject.toml" ] && return
  if [ ! -x "$venv/bin/python" ]; then
    local python
    python=$(find_python)
    echo "setting up $venv with $("$python" --version); once, a few minutes" >&2
    "$python" -m venv "$venv" || {
      rm -rf "$venv"
      fail "$python cannot make virtual environments (on Debian: apt-get install python3-venv)"
    }
  fi
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --editable "$here${extras:+[$extras]}" >&2 ||
    fail "the installation failed (see above); the same command tries again"
  touch "$stamp"
}

run_tests() {
  "$venv/bin/ruff" check .
  "$venv/bin/ruff" format --check .
  "$venv/bin/mypy"
  exec "$venv/bin/python" -m pytest --cov --cov-report=term "$@"
}

cd "$here"
extras=$(extras_for "$@")
install "$extras"
if [ "${1:-}" = test ]; then
  shift
  run_tests "$@"
fi
SUITE_COMMAND="./reproduce.sh$(printf ' %q' "$@")"
export SUITE_COMMAND
exec "$venv/bin/python" -m shared "$@"
