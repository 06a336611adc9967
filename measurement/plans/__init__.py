"""Plans: their settings, files, points and checks."""
