"""`backend = "mpi"` on stock torch wheels: a process group of our own over mpi4py.

MPI starts when mpi4py is imported, and on a login node that can end the process: only `library.load` imports it, on
evidence that an MPI launcher has started this process. `backend.install` is cheap and imports neither.
"""
