"""Numbers: from raw steps to blocks, ratios, verdicts and what explains them."""
