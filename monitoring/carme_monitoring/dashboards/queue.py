"""Partitions and queue: who waits, for how long, and why."""

from carme_monitoring.dashboards.model import (
    Dashboard,
    DashboardLink,
    PanelRow,
    Variable,
    bars,
    lines,
    stat,
    table,
)

_P = 'partition=~"$partition"'
USER = DashboardLink("carme-user", "user", "user")

BOARD = Dashboard(
    "carme-queue",
    "Carme: partitions and queue",
    "For administrators and for who plans partitions: who waits where, how long, and why?",
    (
        PanelRow(
            "Now",
            (
                stat(
                    "Slurm's controller",
                    "carme_slurm_up",
                    "1 while slurmctld answers. 0: sessions go on, but nothing starts; look at"
                    " slurmctld's log.",
                    warn=1,
                    alarm=0.5,
                ),
                stat(
                    "Jobs running",
                    f'sum(carme_slurm_jobs{{state="running",{_P}}})',
                    "Jobs that run in the chosen partitions.",
                    needs="jobs",
                ),
                stat(
                    "Jobs waiting",
                    f"sum(carme_slurm_pending_jobs{{{_P}}})",
                    "Jobs in the queue of the chosen partitions, held ones included.",
                    needs="waiting",
                ),
                stat(
                    "Longest wait",
                    f"max(carme_slurm_pending_oldest_seconds{{{_P}}})",
                    "How long the oldest job has waited. Days: is it held, or does it ask for what"
                    " no node has?",
                    "s",
                    warn=86400,
                    alarm=7 * 86400,
                    needs="waiting",
                ),
                stat(
                    "GPUs free",
                    'sum(carme_slurm_gpus{state="free"})',
                    "GPUs that a job could take now. Free ones while jobs wait: too little memory"
                    " or too few cores beside them, or a reservation.",
                ),
                stat(
                    "GPUs out of service",
                    'sum(carme_slurm_gpus{state="unavailable"})',
                    "On nodes that are down, drained or reserved.",
                    warn=1,
                ),
            ),
        ),
        PanelRow(
            "Queue",
            (
                lines(
                    "Waiting, by reason",
                    "Slurm's own word. Priority and Resources are normal; QOS… and Assoc… are your"
                    " limits; ReqNodeNotAvail and PartitionDown want action.",
                    (f"sum by (reason) (carme_slurm_pending_jobs{{{_P}}})", "{{reason}}"),
                    stack=True,
                    needs="waiting",
                ),
                lines(
                    "Wait of those that wait",
                    "Mean and longest wait so far, by partition.",
                    (f"carme_slurm_pending_mean_seconds{{{_P}}}", "mean {{partition}}"),
                    (f"carme_slurm_pending_oldest_seconds{{{_P}}}", "longest {{partition}}"),
                    unit="s",
                    needs="waiting",
                ),
                lines(
                    "Wait of those that run",
                    "How long the jobs that run now had waited: half of them, nine of ten, all but"
                    " one in a hundred waited no longer.",
                    (f"carme_slurm_started_wait_seconds{{{_P}}}", "{{percentile}} % {{partition}}"),
                    unit="s",
                    needs="jobs",
                ),
                bars(
                    "GPUs of jobs, by user",
                    "Who runs on how many GPUs; click for the user's page.",
                    f'topk(10, sum by (user) (carme_slurm_job_gpus{{state="running",{_P}}}))',
                    "{{user}}",
                    link=USER,
                    needs="jobs",
                ),
                lines(
                    "GPUs by type",
                    "Allocated, free and out of service, for each type. A type that is always full"
                    " is what to buy next.",
                    ("carme_slurm_gpus", "{{type}} {{state}}"),
                ),
                lines(
                    "GPU-hours by partition",
                    "GPUs held in each partition, over an hour.",
                    (f"partition:carme_gpus_held:avg1h{{{_P}}}", "{{partition}}"),
                    stack=True,
                    needs="jobs",
                ),
            ),
        ),
        PanelRow(
            "Partitions",
            (
                table(
                    "Partitions",
                    "1 when jobs may start there, and how full it is.",
                    (f"sum by (partition) (carme_slurm_partition_up{{{_P}}})", "up"),
                    (f'sum by (partition) (carme_slurm_cpus{{state="allocated",{_P}}})',
                     "CPUs taken"),
                    (f'sum by (partition) (carme_slurm_cpus{{state="idle",{_P}}})', "CPUs free"),
                    (f"sum by (partition) (carme_slurm_nodes{{{_P}}})", "nodes"),
                    height=7,
                    width=12,
                ),
                lines(
                    "Nodes by state",
                    "Of the chosen partitions; a node may be in several.",
                    (f"sum by (state) (carme_slurm_nodes{{{_P}}})", "{{state}}"),
                    stack=True,
                    width=12,
                ),
            ),
        ),
        PanelRow(
            "Scheduler",
            (
                lines(
                    "Length of a cycle",
                    "Of the main and the backfill scheduler. Main cycles above a second make Slurm"
                    " sluggish: fewer jobs looked at (default_queue_depth), longer intervals.",
                    ('carme_slurm_scheduler_cycle_seconds{statistic="mean"}', "{{scheduler}} mean"),
                    ('carme_slurm_scheduler_cycle_seconds{statistic="last"}', "{{scheduler}} last"),
                    unit="s",
                ),
                lines(
                    "Queues inside Slurm",
                    "Messages for nodes and records for the accounting that wait. A growing"
                    " accounting queue: slurmdbd or its database is away or slow.",
                    ("carme_slurm_scheduler_agent_queue", "messages"),
                    ("carme_slurm_scheduler_dbd_queue", "accounting records"),
                ),
                lines(
                    "Threads of the controller",
                    "Above 200 the controller is overloaded: who asks it so often? One poller,"
                    " carme-view, is enough for all of Carme.",
                    ("carme_slurm_scheduler_threads", "threads"),
                    warn=100,
                    alarm=200,
                ),
            ),
        ),
    ),
    (Variable("partition", "Partition", "carme_slurm_partition_up", "partition", multi=True),),
)  # fmt: skip
