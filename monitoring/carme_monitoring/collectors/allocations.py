"""Which job holds which GPU: the records of the prolog and epilog."""

from carme.node.gpu_allocations import AllocationReader, GpuAllocation
from carme_monitoring.collector import Collector, CollectorContext, Stage
from carme_monitoring.metrics import metric_group
from carme_monitoring.samples import Samples

METRICS = metric_group(
    "GPU allocations",
    ("jobs_broken_records", "gauge", "", "Holder records that could not be read."),
)  # fmt: skip


class AllocationCollector(Collector[list[GpuAllocation]]):
    """The records of the jobs on this node."""

    name, metrics = "jobs", METRICS
    stage, order = Stage.CHARGED, 5

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._reader = AllocationReader(context.config.run, context.node, context.boot_id)

    def read(self) -> list[GpuAllocation]:
        return self._reader.read(force=True)

    def add_samples(self, out: Samples, _: list[GpuAllocation]) -> None:
        out.add("carme_jobs_broken_records", (), self._reader.broken)
