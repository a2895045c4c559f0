"""`carme doctor`: checks every service of Carme on this host and says what to do.

`host_services` finds out what should run here, `checklist` which checks follow from that, `check`
runs them. The other modules hold the checks: a pure function that decides, and one that reads.
"""
