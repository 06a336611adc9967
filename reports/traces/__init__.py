"""What traces show besides the terms of a step: exchange without waiting, and specific causes."""
