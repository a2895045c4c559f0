"""The platform's own health: exporters, Prometheus, hub."""

from carme_monitoring.dashboards.model import (
    Dashboard,
    DashboardLink,
    PanelRow,
    bars,
    lines,
    stat,
    table,
)

_RATE = "$__rate_interval"
NODE = DashboardLink("carme-node", "node", "node")

BOARD = Dashboard(
    "carme-health",
    "Carme: the platform's own health",
    "For administrators: do Carme's own parts work, and what do they cost?",
    (
        PanelRow(
            "Now",
            (
                stat(
                    "Targets up",
                    "sum(up) / count(up)",
                    "The part of everything that Prometheus reads. Below 100 %: the table says"
                    " which.",
                    "percentunit",
                    most=1,
                    warn=1,
                    alarm=0.9,
                ),
                stat(
                    "Collectors working",
                    "sum(carme_collector_success) / count(carme_collector_success)",
                    "The part of the exporters' collectors whose last run worked.",
                    "percentunit",
                    most=1,
                    warn=1,
                    alarm=0.9,
                ),
                stat(
                    "Age of the view",
                    "max(carme_slurm_snapshot_age_seconds)",
                    "How old the picture of the cluster is that hub and pages show. Minutes: is"
                    " carme-view running, does slurmctld answer?",
                    "s",
                    warn=90,
                    alarm=300,
                ),
                stat(
                    "Alerts firing",
                    'count(ALERTS{alertstate="firing"})',
                    "Open Alertmanager for which, and the runbook of each.",
                    warn=1,
                    needs="alerts",
                ),
                stat(
                    "Series",
                    "sum(prometheus_tsdb_head_series)",
                    "Series that Prometheus holds in memory, about 4 KiB each.",
                ),
                stat(
                    "Sessions",
                    "sum(jupyterhub_running_servers)",
                    "Sessions that the hub knows to run.",
                ),
            ),
        ),
        PanelRow(
            "Exporters",
            (
                table(
                    "Targets",
                    "Those that are down first: 1 where Prometheus gets its answer. 0: is the part"
                    " running, and are the credentials the same on both sides?",
                    ("bottomk(30, min by (job, node, instance) (up))", "up"),
                    width=12,
                ),
                lines(
                    "Time of a collection",
                    "How long the slowest exporters take for a node. Seconds: a driver that hangs.",
                    ("topk(10, carme_exporter_collection_seconds)", "{{instance}}"),
                    unit="s",
                    warn=1,
                    alarm=5,
                    width=12,
                    height=9,
                ),
                lines(
                    "Collectors' time",
                    "The slowest run of each collector, over all nodes.",
                    ("max by (collector) (carme_collector_duration_seconds)", "{{collector}}"),
                    unit="s",
                ),
                bars(
                    "Series, of those allowed",
                    "Beyond the limit further jobs share one set of series: raise"
                    " exporter.series_limit.",
                    "topk(10, carme_exporter_series / carme_exporter_series_limit)",
                    "{{instance}}",
                    "percentunit",
                    most=1,
                    warn=0.7,
                    alarm=0.9,
                ),
                bars(
                    "Values left out",
                    "Values that a source did not have or that were nonsense, since the start. One"
                    " node that stands out: look at its GPUs.",
                    "topk(10, sum by (node, collector, value)"
                    " (carme_collector_value_errors_total))",
                    "{{node}} {{collector}} {{value}}",
                    link=NODE,
                    needs="failures",
                ),
                lines(
                    "Jobs that share their series",
                    "Above zero the limit is reached.",
                    ("sum(carme_exporter_rolled_up_jobs)", "jobs"),
                    warn=1,
                ),
                lines(
                    "Broken records and lost state",
                    "Records of the prolog that could not be read, and state that could not be"
                    " written: a full disk?",
                    ("sum(carme_jobs_broken_records)", "records"),
                    ("sum(rate(carme_exporter_state_failures_total[5m]))", "state, a second"),
                ),
                lines(
                    "Memory of the exporters",
                    "Resident memory; it should stay below 100 MiB.",
                    ('topk(10, process_resident_memory_bytes{job=~"carme.*"})', "{{instance}}"),
                    unit="bytes",
                ),
            ),
        ),
        PanelRow(
            "Prometheus and hub",
            (
                lines(
                    "Samples a second",
                    "What Prometheus takes in; how-to/monitoring says what to expect.",
                    (f"sum(rate(prometheus_tsdb_head_samples_appended_total[{_RATE}]))", "samples"),
                ),
                lines(
                    "Time of a rule group",
                    "The last evaluation. Close to the interval (30 s): too many jobs for one"
                    " Prometheus.",
                    ("prometheus_rule_group_last_duration_seconds", "{{rule_group}}"),
                    unit="s",
                    warn=10,
                    alarm=25,
                ),
                lines(
                    "Rules that failed",
                    "Should be zero: Prometheus' log says which and why.",
                    (f"sum(rate(prometheus_rule_evaluation_failures_total[{_RATE}]))", "a second"),
                ),
                lines(
                    "Disk of Prometheus",
                    "Blocks on disk; how-to/monitoring tells what to expect.",
                    ("prometheus_tsdb_storage_blocks_bytes", "blocks"),
                    unit="bytes",
                ),
                lines(
                    "carme-view",
                    "How often it reads Slurm, is asked by hub, service and exporter, and fails."
                    " Readings by the dozen a second, or failures: slurmctld is the one who pays.",
                    (f"sum(rate(carme_view_reads_total[{_RATE}]))", "readings a second"),
                    (f"sum(rate(carme_view_requests_total[{_RATE}]))", "questions a second"),
                    (f"sum(rate(carme_view_read_errors_total[{_RATE}]))", "failures a second"),
                ),
                lines(
                    "Time of a reading",
                    "What carme-view's last reading of Slurm took. Seconds: slurmctld is busy, or"
                    " the queue is very long.",
                    ("max(carme_view_read_seconds)", "reading"),
                    unit="s",
                    warn=2,
                    alarm=10,
                ),
                lines(
                    "Requests of the service",
                    "What the prediction service answered, by status. 5xx: its log says why.",
                    (f"sum by (status) (rate(carme_service_requests_total[{_RATE}]))",
                     "{{status}}"),
                ),
                lines(
                    "Answers of the service",
                    "95 of 100 requests are answered faster than this.",
                    ("histogram_quantile(0.95, sum by (le)"
                     f" (rate(carme_service_request_seconds_bucket[{_RATE}])))", "95 %"),
                    unit="s",
                    warn=0.5,
                    alarm=2,
                ),
                lines(
                    "Sessions started",
                    "Starts of sessions by how they ended, a minute. Failures in a row: the hub's"
                    " log says why.",
                    ("60 * sum by (status)"
                     f" (rate(jupyterhub_server_spawn_duration_seconds_count[{_RATE}]))",
                     "{{status}}"),
                ),
                lines(
                    "Answers of the hub",
                    "95 of 100 requests are answered faster than this.",
                    ("histogram_quantile(0.95, sum by (le)"
                     f" (rate(jupyterhub_request_duration_seconds_bucket[{_RATE}])))", "95 %"),
                    unit="s",
                    warn=1,
                    alarm=5,
                ),
                lines(
                    "Memory of the hub",
                    "Resident memory of the hub's process.",
                    ('process_resident_memory_bytes{job="hub"}', "hub"),
                    unit="bytes",
                ),
            ),
        ),
    ),
    hours=6,
)  # fmt: skip
