"""One process in the place of all ranks, with their batches together: what ``dp`` is on GPUs, on a
CPU."""

from backends.single import Single


class OneForAll(Single):
    takes_all_ranks_batches = True
