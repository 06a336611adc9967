"""A backend whose last rank dies between a block and its reply.

Named by path in plans."""

import os

from backends.ddp import DDP
from runners.protocol import BlockReply
from runners.rank.worker import EngineRank

LAST_BLOCK = 3
"""The trial that sets the length of blocks is the first."""


class Mute(DDP):
    """Its last rank never replies about its third block."""

    def setup(self, world, *, device, store=None):
        counted = super().setup(world, device=device, store=store)
        if counted.rank == counted.world_size - 1:
            answer, timed = EngineRank.answer, []

            def answer_or_die(rank, command):
                reply = answer(rank, command)
                timed.extend([reply] if isinstance(reply, BlockReply) else [])
                if len(timed) == LAST_BLOCK:
                    print("last words of a mute rank", flush=True)
                    os._exit(9)
                return reply

            EngineRank.answer = answer_or_die
        return counted
