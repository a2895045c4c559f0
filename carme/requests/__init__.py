"""The resource request: its fields, its limits, and whether and when it would start.

Pure functions of a snapshot and a user's rights, the same for hub and service.
"""
