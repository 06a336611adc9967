"""``python -m runners.ddp`` under torchrun or mpirun: measure a workload with native
DistributedDataParallel.
"""

from runners.standalone import serve

if __name__ == "__main__":
    serve("ddp")
