"""``python -m runners.single``: measure a workload in one process without any wrapper, as a plain training script runs it."""

from runners.standalone import serve

if __name__ == "__main__":
    serve("single")
