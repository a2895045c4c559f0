"""Energy, emissions and cost: for reports and bills, with where each figure comes from."""

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
    "carme-energy",
    "Carme: energy, emissions and cost",
    "For who reports or pays: what was used, by whom, and how sure is the figure?",
    (
        PanelRow(
            "Last hour",
            (
                stat(
                    "Energy",
                    "cluster:carme_energy_joules:increase1h",
                    "Everything that the nodes' meters read.",
                    "joule",
                ),
                stat(
                    "Emissions",
                    "cluster:carme_emissions_grams:increase1h",
                    "CO2 equivalent. None: set exporter.emissions_grams_per_kwh.",
                    "massg",
                    needs="emissions",
                ),
                stat(
                    "Cost",
                    "cluster:carme_cost:increase1h",
                    "Of electricity. None: set exporter.price_per_kwh.",
                    needs="price",
                ),
                stat(
                    "Used by nobody",
                    'sum(cluster_consumer:carme_power_watts:avg1h{consumer="unallocated"})'
                    " / sum(cluster_consumer:carme_power_watts:avg1h)",
                    "The part that idle nodes and GPUs drew. High over weeks: power nodes down.",
                    "percentunit",
                    most=1,
                    warn=0.3,
                    alarm=0.6,
                ),
                stat(
                    "Wasted by idle GPUs",
                    "cluster:carme_gpu_idle_joules:increase1h",
                    "GPU energy while held and doing nothing; see the dashboard on waste.",
                    "joule",
                ),
                stat(
                    "Not balanced",
                    "max(abs(carme_node_energy_carry_joules))",
                    "The largest difference between meter and components. It comes and goes with a"
                    " slow meter; one that grows for an hour is a fault (runbook).",
                    "joule",
                ),
            ),
        ),
        PanelRow(
            "Power",
            (
                lines(
                    "By who used it",
                    "Jobs, what nobody held (powering nodes down would save it), and the nodes"
                    " themselves.",
                    ("cluster_consumer:carme_power_watts:avg5m", "{{consumer}}"),
                    unit="watt",
                    stack=True,
                ),
                lines(
                    "By component",
                    "GPUs, processors, memory, and the rest (fans, losses).",
                    ("cluster_component:carme_power_watts:avg5m", "{{component}}"),
                    unit="watt",
                    stack=True,
                ),
                lines(
                    "By partition",
                    "Of the jobs in each partition.",
                    ("partition:carme_power_watts:avg5m", "{{partition}}"),
                    unit="watt",
                    stack=True,
                    needs="jobs",
                ),
                lines(
                    "Node meters",
                    "What the meters of whole nodes say, by source.",
                    ("sum by (source) (carme_node_power_watts)", "{{source}}"),
                    unit="watt",
                    needs="meter",
                ),
            ),
        ),
        PanelRow(
            "Who, in the last hour",
            (
                bars(
                    "Users",
                    "By energy; click for the user's page.",
                    "topk(15, user:carme_energy_joules:increase1h)",
                    "{{user}}",
                    "joule",
                    link=USER,
                    needs="jobs",
                ),
                bars(
                    "Accounts",
                    "By energy: for internal bills use carme jobs --csv, which has every job.",
                    "topk(15, account:carme_energy_joules:increase1h)",
                    "{{account}}",
                    "joule",
                    needs="jobs",
                ),
                bars(
                    "Nodes",
                    "By energy; click for the node's page.",
                    "topk(15, node:carme_energy_joules:increase1h)",
                    "{{node}}",
                    "joule",
                    link=NODE,
                ),
            ),
        ),
        PanelRow(
            "How sure",
            (
                table(
                    "Sources",
                    "Where each node's figures come from; scope says whether that is GPU or node"
                    " energy. A node that lost a source has fewer lines than its twins.",
                    ("sum by (node, component, source, scope) (carme_energy_source_info)",
                     "in use"),
                    link=NODE,
                    width=16,
                    needs="gpus",
                ),
                bars(
                    "Least certain jobs",
                    "Relative standard uncertainty of their energy.",
                    "topk(10, max by (jobid) (carme_job_energy_uncertainty_ratio))",
                    "job {{jobid}}",
                    "percentunit",
                    height=9,
                    needs="jobs",
                ),
            ),
        ),
    ),
    hours=24,
)  # fmt: skip
