"""Whether ranks, or two arms, compute the same: their start, their gradients, their steps."""
