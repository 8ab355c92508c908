#!/bin/bash
# Make .venv once, from the exact versions in env/; does nothing when it is up to date.
#
#   env/make_venv.sh [--dev] [INTERPRETER]
#
# INTERPRETER (make PYTHON=...): one that already has torch. Its packages are seen from .venv, and torch is not installed.
# Exit status: 0 ready, 1 an install failed (its log is named), 2 no suitable Python.
set -euo pipefail

cd "$(dirname "$0")/.."
dev=0
if [ "${1:-}" = --dev ]; then
  dev=1
  shift
fi
given=${1:-}
venv=.venv
say() { printf '%-7s %s\n' env "$*" >&2; }
fail() {
  printf 'hpc-kit: %s\n' "$1" >&2
  printf '  do     %s\n' "$2" >&2
  exit "$3"
}

wanted=$(cat env/requirements.txt pyproject.toml "$0" | cksum)" $given"
wanted_dev=$(cksum <env/requirements-dev.txt)
ready() { [ "$(cat "$venv/.ready" 2>/dev/null)" = "$wanted" ]; }
ready_dev() { [ "$dev" = 0 ] || [ "$(cat "$venv/.ready-dev" 2>/dev/null)" = "$wanted_dev" ]; }
if ready && ready_dev; then exit 0; fi

suits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
base=
for candidate in ${given:+"$given"} python3 python3.13 python3.12 python3.11; do
  if suits "$candidate"; then
    base=$candidate
    break
  fi
  if [ -n "$given" ]; then
    fail "PYTHON=$given is no Python 3.11 or later with venv" "make submit PYTHON=/path/to/python, or leave PYTHON out" 2
  fi
done
if [ -z "$base" ]; then
  fail "no Python 3.11 or later with venv here" "install one (Debian: python3 python3-venv), or make PYTHON=/path/to/python" 2
fi
if [ -n "$given" ] && ! "$given" -c 'import torch' 2>/dev/null; then
  fail "PYTHON=$given has no torch" "$given -m pip install torch==2.13.0, or leave PYTHON out: .venv gets its own" 2
fi

# One line a package: an install of minutes without a word looks like a hang.
install() {
  if ! "$venv/bin/python" -m pip install --disable-pip-version-check "$@" 2>&1 | tee -a "$venv/install.log" |
    sed -unE "s/^(Collecting |Processing .*\/)([^ \/]+).*/env     \2/p" >&2; then
    grep -i error "$venv/install.log" | tail -3 >&2 || true
    fail "installing into $venv failed" "read $venv/install.log; then run the same command again" 1
  fi
}

start=$SECONDS
if ! ready; then
  say "making $venv with $("$base" --version) (once; torch is some hundred megabytes)"
  "$base" -m venv --clear "$venv" || fail "cannot make $venv" "free disk space, or write permission here" 1
  list=env/requirements.txt
  if [ -n "$given" ]; then
    "$given" -c 'import site, sysconfig; print(sysconfig.get_path("purelib")); print(sysconfig.get_path("platlib"))' |
      sort -u >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/given.pth"
    list=$venv/requirements.txt
    sed '/^torch==/d' env/requirements.txt >"$list"
  fi
  install -r "$list"
  install --no-deps -e .
  # An installed package is compiled, one in a checkout is not: without this the first starts are slow, or all of them.
  "$venv/bin/python" -m compileall -q hpc_kit || true
  "$venv/bin/python" -c 'import torch, hpc_kit' || fail "$venv does not work" "remove $venv and run the same command again" 1
  echo "$wanted" >"$venv/.ready"
fi
if ! ready_dev; then
  install -r env/requirements-dev.txt
  echo "$wanted_dev" >"$venv/.ready-dev"
fi
say "$venv ready: $("$venv/bin/python" -c 'import platform, importlib.metadata as m; print("Python", platform.python_version() + ", torch", m.version("torch"))')   $((SECONDS - start)) s"
