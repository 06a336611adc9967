"""The process group over MPI: torch.distributed over Open MPI or MPICH by mpi4py, on stock wheels
of torch.
"""
