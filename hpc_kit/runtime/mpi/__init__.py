"""The backend `mpi` on stock torch wheels: a process group over mpi4py.

Importing mpi4py starts MPI, which can end a process on a login node. Only `library.import_mpi4py` imports it, after an
MPI launcher was identified. `backend.install` is cheap and does not import it.
"""
