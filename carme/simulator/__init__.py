"""What a training job takes and costs, on hardware one has or does not have.

Pure: no I/O, no wall clock, no global random state. Hardware and workload files are read by
`carme.library`, commands live in `carme.simulate`.
"""
