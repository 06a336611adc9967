"""``python -m runners.dp``: measure a workload with ``nn.DataParallel``: one process, all GPUs of this host."""

from runners.standalone import serve

if __name__ == "__main__":
    serve("dp")
