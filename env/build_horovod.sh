#!/bin/bash
# Build Horovod 0.28.1 for the torch of .venv, and install it there: for jobs/horovod_4node.toml. CPUs only, over MPI.
#
#   env/build_horovod.sh [PYTHON]        PYTHON: an interpreter that has torch; default: .venv/bin/python
#
# It needs a C++20 compiler, cmake 3.13 or later, and the mpicxx of the MPI whose mpirun will start the ranks: the one
# beside PYTHON (`make dev` installs MPICH there), or else the first on PATH.
# JOBS=4 compiles four files at a time; with one, the default, it takes about ten minutes and 2 GB of memory.
# Exit status: 0 installed, 1 a step failed (the log is named), 2 a tool is missing.
set -euo pipefail

cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
build=$PWD/build/horovod
log=$build/build.log
fail() {
  printf 'hpc-kit: %s\n  found  %s\n  do     %s\n' "$1" "$2" "$3" >&2
  exit "$4"
}

python=$(command -v "$python") || fail "there is no $python" "${1:-no .venv}" "make dev" 2
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
torch=$("$python" -c 'import torch; print(torch.__version__)') || fail "$python has no torch" "see above" "make dev" 2
# Horovod finds MPI through the first mpicxx on PATH.
PATH=$(dirname "$python"):$PATH
for tool in cmake c++ mpicxx; do
  type "$tool" >/dev/null 2>&1 || fail "there is no $tool" "PATH=$PATH" "apt-get install cmake g++ mpich, or make dev" 2
done
mpicxx -E -include mpi.h -x c++ /dev/null >/dev/null 2>&1 ||
  fail "$(command -v mpicxx) finds no mpi.h" "no headers of this MPI" "apt-get install libmpich-dev, or make dev" 2

mkdir -p "$build"
: >"$log"
step() {
  echo "horovod  $1"
  shift
  "$@" >>"$log" 2>&1 ||
    fail "building Horovod failed" "$(grep -m 3 -i 'error' "$log" || tail -n 3 "$log")" "read $log" 1
}
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

step "installs what its build imports" pip install setuptools wheel packaging cloudpickle psutil pyyaml cffi
step "fetches its sources" pip download --no-deps --no-build-isolation --no-binary :all: -d "$build" horovod==0.28.1
source=$build/horovod-0.28.1
rm -rf "$source"
tar -xf "$source.tar.gz" -C "$build"

# torch's headers need C++17 or later; these files name C++14, and C++11 for the gloo that is compiled with it.
sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
sed -i 's/-std=c++11 -fPIC/-std=c++20 -fPIC/' "$source/third_party/gloo/CMakeLists.txt"
# distutils is not part of Python 3.12.
sed -i "s/from distutils.sysconfig import get_python_inc; print(get_python_inc())/$(
)import sysconfig; print(sysconfig.get_path('include'))/" "$source/horovod/torch/CMakeLists.txt"
sed -i 's/from distutils.spawn import find_executable/from shutil import which as find_executable/' \
  "$source/horovod/runner/js_run.py"

export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITH_MPI=1 HOROVOD_CPU_OPERATIONS=MPI MAKEFLAGS=-j${JOBS:-1}
step "compiles for torch $torch and $(command -v mpicxx)" \
  nice pip wheel --no-deps --no-build-isolation --wheel-dir "$build" "$source"
step "installs" pip install --force-reinstall --no-deps "$build"/horovod-0.28.1-*.whl
step "starts two ranks" mpirun -n 2 "$python" -c '
import horovod.torch as hvd, torch
hvd.init()
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size() == 2
hvd.shutdown()'
echo "horovod  ready: PATH=$(dirname "$(command -v mpirun)"):\$PATH make submit JOB=horovod_4node"
