"""One judge of like arithmetic: whether ranks, or two arms, start alike, exchange alike and step alike."""
