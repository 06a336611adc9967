"""Arms by command: two scripts of the user's, unmodified, measured by an agent in their own interpreters."""
