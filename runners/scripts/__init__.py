"""Arms by command: two scripts of the user's, unmodified, measured by a probe in their own interpreters."""
