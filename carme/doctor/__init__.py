"""`carme doctor`: looks at every service of Carme on this host and says what to do.

`site.py` finds out what should run here, `plan.py` which checks follow from that, `examine.py` runs
them. The other modules hold the checks: a pure function that judges, and one that reads for it.
"""
