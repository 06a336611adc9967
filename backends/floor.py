"""No library at all: the plain training loop on every rank, with nobody waiting for anybody. What computing itself costs."""

from __future__ import annotations

from pydantic import BaseModel

from backends.single import Single


class Floor(Single):
    """``Single`` on as many ranks as the other arms, each with its own batches. Ringside adds it to a comparison by itself."""

    @classmethod
    def check(cls, *, transport: str | None, options: BaseModel, micro_steps: int, world_size: int) -> None:
        """Any number of ranks."""
