"""What somebody asks Slurm for: the fields of a request, and whether and when it would start.

Pure: everything is decided from a snapshot and a user's rights, the same for hub and service.
"""
