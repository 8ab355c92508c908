#!/bin/bash
# Prints the words that start mpirun, one a line:  bash mpirun_words.sh PYTHON [RANKS_PER_NODE]
#
# mpirun is the one on PATH, or the one beside PYTHON, as `pip install mpich` makes it. Its --version decides the
# options: those of Open MPI, or those of MPICH, Intel MPI and MVAPICH2.

# By its name, not by its path: Open MPI takes a path as --prefix, and puts the bin folder of that prefix, which may
# contain the srun of another Slurm, first on PATH.
mpirun=mpirun
command -v mpirun >/dev/null || mpirun=${1%/*}/mpirun
if ! command -v "$mpirun" >/dev/null; then
  echo "hpc-kit: there is no mpirun on $(uname -n)
  found  none on PATH, and none beside $1
  do     load the module of an MPI in a setup line; or install one (Debian: apt-get install openmpi-bin;
         without root: $1 -m pip install mpich)" >&2
  exit 127
fi
version=$("$mpirun" --version 2>&1)
case $version in
  # By default Open MPI binds each rank to one core, and its threads with it.
  *"Open MPI"* | *OpenRTE* | *PRRTE*) set -- ${2:+--map-by "ppr:$2:node"} --bind-to none ;;
  *HYDRA* | *Intel* | *MPICH* | *MVAPICH*) set -- ${2:+-ppn "$2"} ;;
  *)
    echo "hpc-kit: $mpirun is of an unknown MPI
  found  $(head -n1 <<<"$version")
  do     set launch.mpi = openmpi or mpich, whose options it takes" >&2
    exit 2
    ;;
esac
printf "%s\n" "$mpirun" "$@"
