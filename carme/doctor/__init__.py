"""`carme doctor`: looks at every part of Carme on this host and says what to do.

`finding.py` has the model, `host.py`, `cluster.py` and `platform.py` the checks: one small function
each, on what was read; `commands.py` runs those that concern this host.
"""
