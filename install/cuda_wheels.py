"""A CUDA toolkit for one build, from the wheels of the CUDA release that torch brings: for machines with a driver and no nvcc.

torch's wheels carry the run-time library and most headers. Three more carry the compiler. They go into a scratch folder with links
to torch's files, so nothing in the environment changes and nothing stays.
"""

import sys
from importlib import metadata
from pathlib import Path

from install import toolchain

COMPILER_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm")
CONSTRAINTS = Path(__file__).with_name("constraints.txt")


def torch_cuda_files() -> Path | None:
    """Return the folder of torch's own CUDA wheels, with run-time library and headers; None without wheels of CUDA 13."""
    nccl = toolchain.nccl_home()
    folders = sorted(nccl.parent.glob("cu*")) if nccl else []
    return next((folder for folder in folders if (folder / "include" / "cuda_runtime.h").is_file()), None)


def torch_cuda_release() -> str:
    """Return the CUDA release of torch's wheels, such as "13.2"; empty where no compiler can be had to match them."""
    if torch_cuda_files() is None:
        return ""
    try:
        return ".".join(metadata.version("nvidia-cuda-runtime").split(".")[:2])
    except metadata.PackageNotFoundError:
        return ""


def compiler_requirements(release: str) -> list[str]:
    """Return what to install for a CUDA release: the pinned versions where the pins are of that release, else its newest."""
    pins = [line.partition("==") for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines()]
    pinned = {name: version for name, _, version in pins if version.startswith(f"{release}.")}
    return [f"{name}=={pinned.get(name, f'{release}.*')}" for name in COMPILER_WHEELS]


def install_argv(release: str, target: Path) -> list[str]:
    """Return the command that installs the compiler of a CUDA release into a folder of its own."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    return [*uv, "--no-deps", "--target", str(target), *compiler_requirements(release)]


def complete_toolkit(target: Path, release: str) -> toolchain.CudaToolkit:
    """Link torch's headers and run-time library to the compiler installed in ``target``: CMake and nvcc take that for a toolkit.

    Raises:
        PrerequisiteError: The wheels are not laid out as those of CUDA 13 are.
    """
    ours = torch_cuda_files()
    home = target / "nvidia" / (ours.name if ours else "")
    if ours is None or not (home / "bin" / "nvcc").is_file():
        raise toolchain.PrerequisiteError(
            f"the compiler wheels of CUDA {release} hold no nvcc at {home / 'bin'}; install a CUDA toolkit"
        )
    for folder in ("include", "lib"):
        (home / folder).mkdir(exist_ok=True)
        for file in (ours / folder).iterdir():
            if not (home / folder / file.name).exists():
                (home / folder / file.name).symlink_to(file)
    (home / "lib64").symlink_to("lib")
    if not (home / "lib" / "libcudart.so").exists():  # the linker asks for this name, which the wheel has not
        (home / "lib" / "libcudart.so").symlink_to(next((ours / "lib").glob("libcudart.so.*")))
    return toolchain.CudaToolkit(home=home, version=release)
