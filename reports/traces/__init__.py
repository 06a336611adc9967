"""What traces and named evidence tell beyond the terms: exchange apart from waiting, and specific causes."""
