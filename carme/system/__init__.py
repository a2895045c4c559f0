"""This machine: its users, packages and programs."""
