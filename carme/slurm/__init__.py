"""Reading Slurm through one protocol, and writing to it as the user.

Models are frozen and parsers pure; three clients fill the same models.
"""
