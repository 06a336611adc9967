"""A comparison as a Slurm job: its script, its submission, and how it stands."""
