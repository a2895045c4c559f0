from support.small_cluster import catalogue, snapshot  # noqa: F401 (fixtures)
