"""What the loaders alone deliver, and what follows from it for training."""

from __future__ import annotations

from measurement.records.loader_record import LoaderRecord
from reports.conclusions.loaders import LoaderDemand, bytes_per_file, files_per_s, loading_rates, slowest_ranks
from reports.wording.formatting import rate, share


def loader_sentences(record: LoaderRecord, need: LoaderDemand | None) -> list[str]:
    """What the loaders deliver, and whether it is enough for training; the answer first."""
    rates = loading_rates(record)
    slowest, unit = slowest_ranks(rates), record.sample_unit
    in_all = next(found for place, found in rates.items() if place.kind == "all")
    best = max(in_all, key=lambda workers: in_all[workers].value)
    said = [need_sentence(need, slowest, unit)] if need else []
    most = f"{rate(in_all[best])} {unit}/s in all, {rate(slowest[best])} on the slowest rank"
    said.append(f"Most: {_who_load(best)} {most}")
    if best and 0 in in_all:
        said[-1] += f"; {in_all[best].value / in_all[0].value:.1f} times what ranks load by themselves"
    size = bytes_per_file(record)
    if size:
        stored, loaded = files_per_s(record), in_all[best].value
        said.append(
            f"Each sample is a file of {size / 1e3:.3g} kB on average: {megabytes(loaded * size)} are loaded, "
            f"{share(loaded / stored)} of what the file system reads at random, {megabytes(stored * size)} or "
            f"{rate(stored)} files/s"
        )
    return said


def need_sentence(need: LoaderDemand, slowest: dict[int, float], unit: str) -> str:
    """Whether the loader is enough for training, with the fewest workers that are."""
    wanted = f"Training ({need.arm}) needs {rate(need.samples_per_s)} {unit}/s per rank"
    enough = [workers for workers in sorted(slowest) if slowest[workers] >= need.samples_per_s]
    chosen = enough[0] if enough else max(slowest, key=lambda workers: slowest[workers])
    loaded = f"{_who_load(chosen)} {rate(slowest[chosen])}"
    part = share(need.samples_per_s / slowest[chosen])
    if enough:
        return f"{wanted}; {loaded}: enough, {part} of it is needed"
    return f"{wanted}; {loaded} at most: too few, {part} of it is needed, and training waits for data"


def megabytes(bytes_per_s: float) -> str:
    """Such as ``112 MB/s``; a megabyte is 10^6 bytes."""
    return f"{rate(bytes_per_s / 1e6)} MB/s"


def _who_load(workers: int) -> str:
    return f"{workers_words(workers)} per rank load{'s' * (workers == 1)}" if workers else "ranks without loader workers load"


def workers_words(workers: int) -> str:
    """``no worker``, ``1 worker``, ``2 workers``."""
    return f"{workers or 'no'} worker{'s' * (workers > 1)}"
