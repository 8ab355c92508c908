"""A PMI server for mpi/pmi2."""
