"""From a plan to arms: resolves every name and refuses what cannot work, before anything starts."""
