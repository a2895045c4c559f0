"""Reading Slurm through one protocol, and writing to it as the user.

Models are frozen and parsers pure; three backends fill the same models.
"""
