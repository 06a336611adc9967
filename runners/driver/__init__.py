"""A comparison seen from the driver: the rehearsal, the launches, their rounds and gates."""
