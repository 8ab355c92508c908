#!/bin/bash
# Create .venv with the exact versions in env/, or update it. Does nothing if nothing has changed.
#
#   env/make_venv.sh [--dev] [INTERPRETER]
#
# INTERPRETER (make PYTHON=...): an interpreter that has torch. .venv imports its packages, and torch is not installed.
# Later calls use the same interpreter.
# Exit status: 0 ready, 1 an install failed (its log is named), 2 no suitable Python.
set -euo pipefail

cd "$(dirname "$0")/.."
dev=0
if [ "${1:-}" = --dev ]; then
  dev=1
  shift
fi
venv=.venv
given=${1:-$(cat "$venv/.given" 2>/dev/null || true)}
say() { printf '%-7s %s\n' env "$*" >&2; }
fail() {
  printf 'hpc-kit: %s\n' "$1" >&2
  printf '  do     %s\n' "$2" >&2
  exit "$3"
}

# .venv/.<part> records the inputs of each part. A part is installed again when its inputs change.
fresh() { [ "$(cat "$venv/.$1" 2>/dev/null)" = "$2" ]; }
python_of="$given $(cksum <env/requirements.txt)"
kit_of=$(cksum <pyproject.toml)
dev_of=$(cksum <env/requirements-dev.txt)
if fresh packages "$python_of" && fresh kit "$kit_of" && { [ "$dev" = 0 ] || fresh dev "$dev_of"; }; then exit 0; fi

suits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
base=
if [ -n "$given" ]; then
  case $("$given" -c 'import sys; print(sys.prefix)' 2>/dev/null) in
  "$PWD/$venv") fail "PYTHON=$given is $venv itself" "leave PYTHON out" 2 ;;
  esac
  suits "$given" || fail "PYTHON=$given is no Python 3.11 or later with venv" "make submit PYTHON=/path/to/python" 2
  "$given" -c 'import torch' 2>/dev/null ||
    fail "PYTHON=$given has no torch" "$given -m pip install torch; or rm -r $venv, and leave PYTHON out" 2
  base=$given
else
  for candidate in python3 python3.13 python3.12 python3.11; do
    if suits "$candidate"; then
      base=$candidate
      break
    fi
  done
  [ -n "$base" ] || fail "no Python 3.11 or later with venv here" \
    "install one (Debian: python3 python3-venv), or make PYTHON=/path/to/python" 2
fi

# One line per package: a silent install of minutes looks like a hang.
install() {
  if ! "$venv/bin/python" -m pip install --disable-pip-version-check "$@" 2>&1 | tee -a "$venv/install.log" |
    sed -unE "s/^(Collecting |Processing [^ ]*\/)([^ =-]+)(==|-)([0-9][^ -]*).*/env     \2 \4/p" >&2; then
    grep -i error "$venv/install.log" | tail -3 >&2 || true
    fail "installing into $venv failed" "read $venv/install.log; then run the same command again" 1
  fi
}

start=$SECONDS
if ! fresh packages "$python_of"; then
  say "$venv from $("$base" --version) (once; torch: some hundred megabytes, with CUDA's libraries some 5 GB)"
  clear=--clear
  if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.given" 2>/dev/null)" = "$given" ]; then clear=; fi
  "$base" -m venv ${clear:+"$clear"} "$venv" || fail "cannot make $venv" "free disk space, or write permission here" 1
  echo "$given" >"$venv/.given"
  # By default pip installs the CUDA build, on any machine.
  if [ -z "$given" ] && [ ! -e /dev/nvidiactl ] && [ "$(uname -m)" = x86_64 ] &&
    ! "$venv/bin/python" -m pip config list 2>/dev/null | grep -Eq 'index-url|find-links'; then
    say "this machine has no NVIDIA device, but pip installs torch with CUDA. For torch's CPU build, press Ctrl-C and set"
    say "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, or use an interpreter with torch: make PYTHON=..."
  fi
  list=env/requirements.txt
  if [ -n "$given" ]; then
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$given" -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' >"$packages/given.pth"
    list=$venv/requirements.txt
    sed -E '/^(torch|numpy)==/d' env/requirements.txt >"$list"
  fi
  install -r "$list"
  "$venv/bin/python" -c 'import torch' || fail "torch cannot be imported from $venv" "read $venv/install.log" 1
  echo "$python_of" >"$venv/.packages"
fi
if ! fresh kit "$kit_of"; then
  install --no-deps -e .
  # pip compiles an installed package, but not an editable one: its first start would be slow.
  "$venv/bin/python" -m compileall -q hpc_kit || true
  echo "$kit_of" >"$venv/.kit"
fi
if [ "$dev" = 1 ] && ! fresh dev "$dev_of"; then
  install -r env/requirements-dev.txt
  echo "$dev_of" >"$venv/.dev"
fi
say "$venv ready: $("$venv/bin/python" -c 'import platform, importlib.metadata as m; print("Python", platform.python_version() + ", torch", m.version("torch"))')   $((SECONDS - start)) s"
