"""``python -m runners.hvd`` under horovodrun or mpirun: measure a workload with Horovod."""

from runners.standalone import serve

if __name__ == "__main__":
    serve("horovod")
