"""The energy ledger: what the sources read, divided among jobs, `unallocated` and `system`.

sources.py turns counters and gauges into joules, shares.py says who gets which part of them,
ledger.py keeps the accounts, accountant.py puts the three together. All of it is pure.
"""
