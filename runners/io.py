"""``python -m runners.io`` under any launcher: how many samples per second the loaders of a workload deliver, without a model."""

from runners.standalone.loader_benchmark import serve

if __name__ == "__main__":
    serve()
