"""Rules for NCCL's and Gloo's settings of transports and network interfaces."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.rules.rendezvous import removal
from hpc_kit.lazy_pattern import lazy_pattern

_TRANSPORTS = {
    "NCCL_P2P_DISABLE": "GPUs of a node exchange data through the memory of the host",
    "NCCL_SHM_DISABLE": "processes of a node exchange data over the network",
    "NCCL_IB_DISABLE": "nodes exchange data over TCP instead of InfiniBand or RoCE",
}


_BACKENDS = ("backend", "dist-backend", "ddp-backend", "distributed-backend")
_GLOO = "gloo sends the gradients of the GPUs through the memory of the host"


@rule("KIT315", "warning", needs=("gloo", "nccl"))
def disabled_transports(script: BatchScript) -> Iterator[Problem]:
    """NCCL's fast transports are switched off.

    These settings help to find the cause of a hang. Left in the script, they make every all-reduce slower, often five
    times. `--backend gloo` sends the gradients of GPUs through the memory of the host. The rule is silent if a comment
    at the line gives a reason.

    Fix: remove the line; or keep it, with the reason as a comment. `--backend nccl` for GPUs.
    Documented: NCCL documentation, "Environment Variables"; pytorch.org/docs/stable/distributed.html, "Which backend to
    use?".
    """
    size = script.size
    for each in script.assignments if size.has_gpus and script.training else ():
        if each.name.endswith("BACKEND") and each.value.text == "gloo" and not script.has_reason(each.line):
            yield Problem(each.value, _GLOO, "write nccl")
    for launch in script.training if size.has_gpus else ():
        backend = launch.argument(*_BACKENDS)
        if backend is not None and backend.text == "gloo" and not launch.on_cpus and not script.has_reason(launch.line):
            yield Problem(backend, _GLOO, "write nccl", (launch.line,))
    for each in script.assignments_of(*_TRANSPORTS):
        if each.value.text != "1" or each.value.has_default or script.has_reason(each.line):
            continue
        if each.name == "NCCL_IB_DISABLE" and not size.has_several_nodes:
            continue
        remedy, edits = "remove it, or write the reason as a comment", removal(script, each)
        yield Problem(each.value, f"{each.name}=1: {_TRANSPORTS[each.name]}", remedy, edits=edits)


_OF_ONE_HOST = lazy_pattern(r"lo|(docker|virbr|podman|cni|veth|br-)\w*")

_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@rule("KIT316", "warning", needs=("ifname", "nccl_ib_hca"))
def guessed_interface(script: BatchScript) -> Iterator[Problem]:
    """The name of a network interface that many nodes do not have.

    Cluster nodes call their interfaces ib0, hsn0, bond0 or ens1f0np0. `eth0` and `eno1` come from examples; docker0
    connects containers of one host. A wrong name ends NCCL with "no socket interface found"; Gloo with "Unable to find
    address". NCCL_IB_HCA names devices, such as mlx5_0, and no interfaces. The rule is silent if a comment at the line
    gives a reason. The `^` and `=` of NCCL_SOCKET_IFNAME are NCCL's own: Gloo takes `^lo` for the name of an interface,
    and ends (an error in a training over Gloo). If the cluster file lists the interfaces of a node, the rule compares
    the name with them instead: NCCL takes the beginning of a name, and Gloo the whole.

    Fix: remove the line: NCCL and Gloo find the interface themselves. Or exclude some for NCCL:
    `NCCL_SOCKET_IFNAME=^lo,docker0`.
    Documented: NCCL documentation, NCCL_SOCKET_IFNAME; pytorch.org/docs/stable/distributed.html, GLOO_SOCKET_IFNAME.
    """
    known = _interfaces_of_nodes(script)
    yield from _unknown_names(script, known) if known else _guessed_names(script)
    backends = [launch.argument(*_BACKENDS) for launch in script.training]
    over_gloo = any(backend is not None and "gloo" in backend.text for backend in backends)
    for each in script.assignments_of("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        sign = each.value.text[:1]
        if sign in {"^", "="} and not each.value.has_default:
            what = (
                f"the {sign} is NCCL's own: Gloo looks for an interface that is named {each.value.text.split(',')[0]}"
            )
            certain = each.name.startswith("GLOO") and over_gloo
            yield Problem(each.value, what, "remove it, or name one interface", certain=certain)
    for each in script.assignments_of("NCCL_IB_HCA"):
        name = re.match(r"=?((?:ib|eth|bond|hsn|eno)\d+)\b", each.value.text)
        if name is not None and not script.has_reason(each.line):
            what = f"{name[1]} is a network interface, and no InfiniBand device: NCCL uses slow sockets instead"
            yield Problem(each.value, what, "remove it, or name a device that `ibv_devices` shows, such as mlx5_0")


def _interfaces_of_nodes(script: BatchScript) -> tuple[str, ...]:
    """Return the interfaces that the cluster file lists for the nodes of the job; none if it lists none."""
    cluster = script.site.cluster
    if cluster is None or cluster.slurm == "embedded":
        return ()
    return cluster.for_partition(script.options.get("partition")).node.interfaces


def _unknown_names(script: BatchScript, known: tuple[str, ...]) -> Iterator[Problem]:
    """Find the names of interfaces that the nodes do not have."""
    for each in script.assignments_of(*_INTERFACES, "TP_SOCKET_IFNAME"):
        text = each.value.text
        # `^lo,docker0` excludes both.
        if each.value.has_default or not each.value.is_known or text[:1] in {"", "^"} or script.has_reason(each.line):
            continue
        exact = text.startswith("=") or not each.name.startswith("NCCL")
        names = text.lstrip("=").split(",")
        if not any(name == other if exact else other.startswith(name) for name in names for other in (*known, "lo")):
            what = f"no interface of the nodes is {text}: the cluster file lists {', '.join(known)}"
            yield Problem(each.value, what, "remove it, or name one of these")


def _guessed_names(script: BatchScript) -> Iterator[Problem]:
    """Find the names that examples have, and most clusters do not."""
    for each in script.assignments_of(*_INTERFACES, "TP_SOCKET_IFNAME"):
        if each.value.has_default:
            continue
        names = each.value.text.lstrip("=").split(",") if not each.value.text.startswith("^") else []
        guesses = [name for name in names if re.fullmatch(r"eth\d?|en0|eno1|wlan\d|docker\d|virbr\d", name)]
        # A further name is a choice: `eth,ib` is any interface whose name begins so.
        guess = names[0] if guesses == names and names else None
        if guess is not None and script.size.has_several_nodes and not script.has_reason(each.line):
            what = f"{guess} is a guess: few cluster nodes have an interface of this name between nodes"
            yield Problem(each.value, what, "remove it, or name the interface that `ip -br addr` shows on a node")


@rule("KIT309", needs=("ifname",))
def loopback_interface(script: BatchScript) -> Iterator[Problem]:
    """NCCL or Gloo uses the loopback interface, and the job has several nodes.

    `lo` connects the processes of one node only, and docker0 the containers of one. Ranks of other nodes time out, or
    connect to themselves. The virtual nodes of the embedded Slurm are one host: the rule is silent if the cluster file
    says slurm = "embedded".

    Fix: remove the line, or name the interface of the cluster's network (`ip -br addr` on a node). A `^` in front
    excludes the interfaces of a list: `NCCL_SOCKET_IFNAME=^docker,lo`.
    Documented: NCCL documentation, NCCL_SOCKET_IFNAME; pytorch.org/docs/stable/distributed.html, GLOO_SOCKET_IFNAME.
    """
    wide = any(script.size_of(launch).has_several_nodes for launch in script.training)
    cluster = script.site.cluster
    # A rendered script has this setting from its cluster file, which then is one for the embedded Slurm.
    rendered = any(line.startswith("# made by   hpc-kit") for line in script.lines[:4])
    one_host = cluster.slurm == "embedded" if cluster is not None else rendered
    for each in script.assignments_of(*_INTERFACES) if wide and not one_host else ():
        # Without a cluster file, a job that names nothing of a cluster may be for the embedded Slurm.
        named = script.options.keys() & {"account", "constraint", "exclusive", "partition", "qos"}
        read = each.name.startswith("NCCL") or script.size.has_gpus or named
        names = each.value.text.lstrip("=").split(",")
        if not read or "lo" not in names or not all(map(_OF_ONE_HOST.fullmatch, names)):
            continue
        what = f"{each.name}={each.value.text} reaches no other node"
        if len(names) == 1:
            remedy = "remove it, or name an interface of the network"
            yield Problem(each.value, what, remedy, (script.line_of("nodes"),), edits=removal(script, each))
        else:
            exclude = f"write ^{','.join(names)} to exclude these interfaces"
            # Gloo has no exclusion.
            remedy = exclude if each.name.startswith("NCCL") else "remove it, or name an interface of the network"
            yield Problem(each.value, what, remedy, (script.line_of("nodes"),))
