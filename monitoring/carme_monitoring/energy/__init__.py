"""The energy ledger: what the sources read, divided among jobs, `unallocated` and `system`.

accountant.py turns counters and gauges into joules and charges them, shares.py says which part each
consumer gets, ledger.py keeps the accounts. None of them does I/O.
"""
