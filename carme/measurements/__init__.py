"""The simulator against measurements that others published.

`rows` reads the tables, `eligibility` says which rows count, `runs` turns a row into a workload, a
cluster and a plan, `judgement` compares and `summary` adds up. Only `commands` reads files.
"""
