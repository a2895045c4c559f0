"""Cluster at a glance: what an administrator opens in the morning."""

from carme_monitoring.dashboards.model import (
    Dashboard,
    DashboardLink,
    PanelRow,
    bars,
    lines,
    stat,
    table,
)

NODE = DashboardLink("carme-node", "node", "node")
USER = DashboardLink("carme-user", "user", "user")

BOARD = Dashboard(
    "carme-cluster",
    "Carme: cluster at a glance",
    "For administrators, every morning: is everything up, is it used, and what does it draw?",
    (
        PanelRow(
            "Now",
            (
                stat(
                    "GPUs allocated",
                    'sum(carme_slurm_gpus{state="allocated"}) / sum(carme_slurm_gpus)',
                    "The part of all GPUs that jobs hold. Near 100 % people wait: look at the"
                    " queue. Far below it with people waiting: look for drained nodes.",
                    "percentunit",
                    most=1,
                ),
                stat(
                    "GPU utilisation",
                    "cluster:carme_gpu_utilisation_ratio:avg5m",
                    "How busy the held GPUs are. Low while many are held means waste: open the"
                    " dashboard on waste.",
                    "percentunit",
                    most=1,
                    warn=0.5,
                    alarm=0.2,
                    needs="jobs",
                ),
                stat(
                    "GPUs held idle",
                    "cluster:carme_gpus_idle:avg5m",
                    "GPUs that jobs hold and that did nothing, over five minutes. Each could serve"
                    " somebody who waits.",
                    warn=1,
                    alarm=8,
                ),
                stat(
                    "Power",
                    "cluster:carme_power_watts:avg5m",
                    "What all nodes draw, as far as they are metered (the dashboard on energy says"
                    " how).",
                    "watt",
                ),
                stat(
                    "GPUs lost",
                    "sum(carme_gpu_lost)",
                    "GPUs that do not answer. Above zero: drain the node, look at its kernel log,"
                    " reset the card or reboot.",
                    alarm=1,
                ),
                stat(
                    "Exporters away",
                    'sum(up{job="carme"} == bool 0)',
                    "Nodes whose exporter Prometheus cannot read. Above zero: is the node down, or"
                    " only carme-exporter?",
                    alarm=1,
                ),
            ),
        ),
        PanelRow(
            "Use",
            (
                lines(
                    "GPUs",
                    "Held by jobs, working, and held in vain. The gap between held and working is"
                    " what better job sizes would win.",
                    ("cluster:carme_gpus_held:avg5m", "held"),
                    ("cluster:carme_gpus_utilised:avg5m", "working"),
                    ("cluster:carme_gpus_idle:avg5m", "idle"),
                ),
                lines(
                    "Power by who used it",
                    "Jobs, nodes that nobody held, and the system's own share. Much unallocated"
                    " power on a quiet cluster: consider powering nodes down.",
                    ("cluster_consumer:carme_power_watts:avg5m", "{{consumer}}"),
                    unit="watt",
                    stack=True,
                ),
                lines(
                    "Jobs",
                    "Jobs by state. A growing queue with free GPUs points to limits or to a stuck"
                    " scheduler: open partitions and queue.",
                    ("sum by (state) (carme_slurm_jobs)", "{{state}}"),
                    needs="jobs",
                ),
                lines(
                    "Nodes by state",
                    "Each node once. Drained and down nodes are missing capacity: `carme nodes`"
                    " says why each is out.",
                    ("carme_slurm_cluster_nodes", "{{state}}"),
                    stack=True,
                ),
                lines(
                    "Processors",
                    "Processors asked for by jobs and those of them that did nothing.",
                    ("cluster:carme_cpus_asked:avg5m", "asked for"),
                    ("cluster:carme_cpus_idle:avg5m", "idle"),
                    needs="jobs",
                ),
                bars(
                    "Users by power",
                    "Who draws the most at the moment; click for the user's own page.",
                    "topk(10, user:carme_power_watts:avg5m)",
                    "{{user}}",
                    "watt",
                    link=USER,
                    needs="jobs",
                ),
            ),
        ),
        PanelRow(
            "Nodes",
            (
                table(
                    "Nodes",
                    "A line for each node; click for its own page. Look for nodes that draw power"
                    " without GPUs held, and for high idle shares.",
                    ("node:carme_power_watts:avg5m", "power (W)"),
                    ("node:carme_gpus_held:avg5m", "GPUs held"),
                    ("node:carme_gpus_idle:avg5m", "GPUs idle"),
                    ("sum by (node) (1 - carme_node_memory_available_bytes"
                     " / carme_node_memory_total_bytes)", "memory used"),
                    ("sum by (node) (carme_node_load_ratio)", "load per CPU"),
                    link=NODE,
                ),
            ),
        ),
    ),
)  # fmt: skip
