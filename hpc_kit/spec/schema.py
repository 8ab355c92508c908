"""The published JSON Schema of job and cluster files, with a description of each sbatch option."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Job

RESOURCES = {
    "account": "Account that is charged",
    "acctg_freq": "Sampling intervals of accounting",
    "array": "Array of jobs: indices such as '0-9:2%4'",
    "batch": "Features that the batch script's node must have",
    "bb": "Burst buffer specification",
    "bbf": "File with the burst buffer specification",
    "begin": "Start no sooner, such as 'now+1hour' or '2026-01-31T20:00'",
    "chdir": "Working directory of the batch script",
    "cluster_constraint": "Features that a federated cluster must have",
    "clusters": "Clusters to try, comma separated",
    "comment": "Comment, seen in squeue and sacct",
    "constraint": "Node features, such as 'a100&ib'",
    "container": "OCI bundle to run the script in",
    "context": "SELinux context",
    "contiguous": "Ask for nodes that lie side by side",
    "core_spec": "Cores a node kept for the system",
    "cores_per_socket": "Least cores a socket",
    "cpu_freq": "CPU frequency or governor",
    "cpus_per_gpu": "CPUs for each GPU",
    "cpus_per_task": "CPUs for each task",
    "deadline": "Remove the job if it cannot end before",
    "delay_boot": "Wait this long before rebooting nodes for a feature",
    "dependency": "Jobs to wait for, such as 'afterok:123' or 'singleton'",
    "distribution": "Distribution of tasks: block, cyclic, plane=N, arbitrary",
    "error": "File of the batch script's stderr (default: with its stdout)",
    "exclude": "Nodes not to use, such as 'n[3,7]'",
    "exclusive": "Whole nodes; or 'user', 'mcs'",
    "export": "Variables taken along: ALL, NONE or a list",
    "export_file": "File of the variables taken along",
    "extra_node_info": "sockets[:cores[:threads]] of the nodes",
    "get_user_env": "Load the user's login environment",
    "gpu_bind": "How tasks are bound to GPUs; 'none' lets each see all of its node's",
    "gpu_freq": "GPU frequency",
    "gpus": "GPUs of the whole job, such as 8 or 'a100:8'",
    "gpus_per_node": "GPUs on each node",
    "gpus_per_socket": "GPUs on each socket",
    "gpus_per_task": "GPUs for each task",
    "gres": "Generic resources of each node, such as 'gpu:a100:4'",
    "gres_flags": "disable-binding or enforce-binding",
    "hint": "compute_bound, memory_bound, multithread or nomultithread",
    "hold": "Submit held: `scontrol release` starts it",
    "input": "File of the batch script's stdin",
    "job_name": "Name of the job (default: the job file's)",
    "kill_on_invalid_dep": "End the job when its dependency can never be met: yes or no",
    "licenses": "Licences needed",
    "mail_type": "When to send mail, such as 'END,FAIL'",
    "mail_user": "Who gets the mail",
    "mcs_label": "MCS label",
    "mem": "Memory of each node, such as '4G'",
    "mem_bind": "Binding of tasks to memory",
    "mem_per_cpu": "Memory for each CPU",
    "mem_per_gpu": "Memory for each GPU",
    "mincpus": "Least CPUs a node",
    "network": "Network options of the system",
    "nice": "Lower the priority by this",
    "no_kill": "Go on when a node of the job fails",
    "no_requeue": "Never requeue",
    "nodefile": "File that lists the nodes",
    "nodelist": "Nodes that must be among the job's",
    "nodes": "How many nodes",
    "ntasks": "Tasks in all (default: nodes x ntasks_per_node)",
    "ntasks_per_core": "Most tasks a core",
    "ntasks_per_gpu": "Tasks for each GPU",
    "ntasks_per_node": "Tasks on each node; under srun one task is one rank",
    "ntasks_per_socket": "Most tasks a socket",
    "open_mode": "What to do with log files that exist",
    "output": "File of the batch script's own output (default: runs/<job_name>/%j.log)",
    "overcommit": "More than one task a CPU",
    "oversubscribe": "Let other jobs share the nodes",
    "partition": "Partition, or several, comma separated",
    "power": "Power management options",
    "prefer": "Features wanted, not needed",
    "priority": "Priority, where one may set it",
    "profile": "Profiling: energy, task, lustre, network, all, none",
    "propagate": "Resource limits taken along",
    "qos": "Quality of service",
    "reboot": "Reboot the nodes first",
    "requeue": "May be requeued after a node failure or preemption",
    "reservation": "Reservation to run in",
    "signal": "Signal before the time limit, such as 'USR1@120' or 'B:TERM@60'",
    "sockets_per_node": "Least sockets a node",
    "spread_job": "Spread over as many nodes as can be",
    "switches": "Most leaf switches, such as '1@60:00'",
    "thread_spec": "Threads a node kept for the system",
    "threads_per_core": "Threads of each core to use",
    "time": "Time limit: minutes, 'H:M:S' or 'D-H:M:S'",
    "time_min": "Least time limit that would do",
    "tmp": "Least temporary disk space a node",
    "tres_bind": "Binding of tasks to generic resources",
    "use_min_nodes": "Prefer the smaller count of a node range",
    "wait_all_nodes": "1: start when all nodes are booted",
    "wckey": "Workload characterization key",
    "consolidate_segments": "Put segments of nodes close to one another (Slurm 25.11)",
    "container_id": "Name of the OCI container (Slurm 23.02)",
    "container_type": "Kind of container (Slurm 26.05)",
    "extra": "Text for filters and plugins of the site (Slurm 23.02)",
    "mem_update": "Changes of memory while the job runs (Slurm 26.05)",
    "oom_kill_step": "End a step if one of its tasks is out of memory (Slurm 24.05)",
    "resources": "Resources of the whole job, such as licences (Slurm 25.05)",
    "resv_ports": "Ports kept for the job's communication (Slurm 24.11)",
    "segment": "Nodes that must lie close together, in groups of this size (Slurm 24.05)",
    "spread_segments": "Keep segments of nodes apart from one another (Slurm 25.11)",
    "stepmgr": "Let the job's first node manage its steps (Slurm 24.05)",
    "tres_per_task": "Resources for each task, such as 'gres/gpu:1' (Slurm 23.11)",
}


KINDS = {"job": Job, "cluster": Cluster}


def schema_text(kind: str) -> str:
    """The JSON Schema (draft 2020-12) of one kind of file."""
    (reference,), components = msgspec.json.schema_components([KINDS[kind]], ref_template="#/$defs/{name}")
    for table in ("Resources", "Component"):
        # A cluster file has no components.
        for name, text in RESOURCES.items() if table in components else ():
            components[table]["properties"][name]["description"] = text
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"hpc_kit {kind} file",
        **reference,
        "$defs": {name: _without_null(component) for name, component in components.items()},
    }
    return json.dumps(schema, indent=2) + "\n"


def _without_null(schema: Any) -> Any:
    """TOML has no null: an option that is not wanted is left out."""
    if isinstance(schema, list):
        return [_without_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {key: _without_null(value) for key, value in schema.items() if not (key == "default" and value is None)}
    if "anyOf" in cleaned:
        alternatives = cleaned.pop("anyOf")
        kinds = [kind for kind in alternatives if kind != {"type": "null"}]
        cleaned |= {"anyOf": kinds} if len(kinds) > 1 else kinds[0]
    return cleaned
