"""A launcher in the command of a job: `torchrun train.py` becomes [launch], or is refused.

Each rank of a job is a process already. A launcher in the command would start further ones in each of them: separate
worlds, each of which trains its own model, and the job would still be COMPLETED.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePath

from msgspec import structs

from hpc_kit.errors import DirectiveError, SpecError
from hpc_kit.slurm import option_values
from hpc_kit.slurm.units import format_count
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Job
from hpc_kit.spec.job_checks import Origins
from hpc_kit.spec.launcher_command import LEGACY_LAUNCHER, MPIRUN, LauncherCommand, find_launcher
from hpc_kit.spec.resources import GPU_FIELDS, Resources
from hpc_kit.spec.shell_code import ShellCode, read_shell_code
from hpc_kit.spec.size_checks import count_nodes_and_tasks

_OWN_RENDEZVOUS = frozenset({
    "local-addr", "master-addr", "master-port", "nnodes", "node-rank", "nproc-per-node", "rdzv-backend", "rdzv-conf",
    "rdzv-endpoint", "rdzv-id", "standalone", "use-env",
})  # fmt: skip
"""Options of torchrun that the job completes itself."""


def adopt_launcher(job: Job, cluster: Cluster, origins: Origins, root: Path) -> tuple[Job, tuple[str, ...]]:
    """Return the job with the launcher of its command as [launch], and notes about it.

    torchrun and mpirun start as many nodes and ranks as the job has. A job that gives no numbers takes them from the
    options of its launcher. HPC_KIT_LAUNCHER=torchrun in [env] keeps a separate world for each rank.

    Raises:
        SpecError: The launcher cannot start the ranks of the job, or its options contradict the job.
    """
    if str(job.env.get("HPC_KIT_LAUNCHER", "")).strip() == "torchrun" or any(each.command for each in job.component):
        return job, ()
    command = _find_checked(job.command)
    # A shell may start the launcher: `bash run.sh`, or `bash -c "torchrun ..."`.
    code = read_shell_code(job.command, root / (job.resources.chdir or "")) if command is None else None
    if code is None and (command is None or not command.program):
        return job, ()
    job, command = _with_agents(job, cluster, command, origins)
    resources, has_own_size = _with_size(job, command)
    nodes, ntasks = count_nodes_and_tasks(structs.replace(job, resources=resources), cluster.node, origins)
    ranks = -(-ntasks // nodes) * job.launch.nproc_per_node
    if command is None:
        if code is not None and nodes * ranks > 1:
            _check_shell_code(code, nodes, ranks, on_cpus=cluster.node.gpus == 0)
        return job, ()
    if has_own_size or command.kind == "srun":
        check_launcher_size(command, nodes, ranks)
    if command.kind in {"torchrun", "mpirun", "srun"}:
        reason = _obstacle(job, cluster, command, even=ntasks % nodes == 0)
        if reason:
            raise _launcher_error(command.kind, nodes, ranks, reason, (*command.prefix, *command.program), command)
        sized = structs.replace(job, command=_program_of_agents(command), resources=resources)
        if command.kind == "srun":
            return sized, ("ignoring srun of the command, because the script starts the ranks by srun",)
        return (
            _under_mpirun(sized, job.command[0], command)
            if command.kind == "mpirun"
            else _under_agents(sized, command, nodes, ranks)
        )
    # One task: a launcher of a single node starts one world there.
    if nodes * ranks > 1 or (has_own_size and (command.ranks or command.ranks_per_node or 1) > 1):
        reason = f"the job starts {nodes * ranks} processes, and each would start {command.kind}"
        program, on_cpus = (*command.prefix, *command.program), cluster.node.gpus == 0
        raise _launcher_error(command.kind, nodes, ranks, reason, program, command, on_cpus=on_cpus)
    return job, ()


def _check_shell_code(code: ShellCode, nodes: int, ranks: int, *, on_cpus: bool) -> None:
    """Refuse shell code that starts a launcher in each of several tasks.

    An agent that names its own number of nodes may make one world of the tasks, and code that tests its rank may start
    one launcher for all of them.
    """
    if code.tests_rank:
        return
    for words in code.commands():
        try:
            found = find_launcher(words)
        except DirectiveError:  # options of a site's plug-in of srun
            continue
        if found is None or not found.program:
            continue
        # Each task may solve a problem of its own with MPI.
        if found.kind in {"srun", *MPIRUN} and not PurePath(found.program[0]).name.startswith("python"):
            continue
        # A trainer gets the number of nodes from many places.
        if ranks == 1 and (found.has_several_nodes or found.is_trainer):
            continue
        program = (*found.prefix, *found.program)
        if code.file is None:
            raise _launcher_error(
                found.kind, nodes, ranks, f"in the shell code {shlex.join(words)}", program, on_cpus=on_cpus
            )
        raise SpecError(
            f"{found.kind} in the command would not make one world of {nodes * ranks} ranks",
            found=f"each of the {nodes * ranks} tasks runs {code.file}: {shlex.join(words)}",
            remedy=f"write {shlex.join(program)} in its place, because hpc-kit starts the ranks;"
            " or, if each task is to start its own: --set env.HPC_KIT_LAUNCHER=torchrun",
        )


def _find_checked(words: Sequence[str]) -> LauncherCommand | None:
    """Return the launcher. Refuse one of several programs, and one whose program was not found among its options."""
    command = find_launcher(words)
    if command is None:
        return None
    if command.kind in MPIRUN and ":" in command.program:
        raise SpecError(
            f"{command.kind} in the command starts several programs",
            found=shlex.join(words),
            remedy="write a job file with one [[component]] for each program: its command, nodes and ntasks",
        )
    if not command.program and words[-1].endswith(".py"):
        raise SpecError(
            f"the program behind {command.kind} is not clear",
            found=f"{words[-1]} looks like the value of an option in: {shlex.join(words)}",
            remedy=f"write the options of {command.kind} as --NAME=VALUE, or leave {command.kind} out:"
            f" hpc-kit submit -j NODESxRANKS -- python {shlex.quote(words[-1])}",
        )
    return command


def _with_agents(
    job: Job, cluster: Cluster, command: LauncherCommand | None, origins: Origins
) -> tuple[Job, LauncherCommand | None]:
    """Return the job and torchrun with the number of ranks that torchrun starts on each node.

    One task per node is the usual shape of a job for torchrun: the task is the agent, and its resources are those of
    the node. `--nproc-per-node=gpu` is the number of GPUs that the job has on each node.
    """
    resources = job.resources
    if command is None or command.kind != "torchrun" or job.launch.starts_agents:
        return job, command
    has_own_size = any((resources.ntasks, resources.ntasks_per_node, resources.ntasks_per_gpu))
    sized = resources if has_own_size else structs.replace(resources, nodes=resources.nodes or command.nodes)
    if has_own_size and resources.nodes is None and resources.ntasks_per_node == 1 and resources.ntasks is None:
        sized = resources = structs.replace(resources, nodes=command.nodes)
    nodes, ntasks = count_nodes_and_tasks(structs.replace(job, resources=sized), cluster.node, origins)
    one_task_per_node = has_own_size and nodes == ntasks and not resources.ntasks_per_gpu
    asked_ranks = command.options.get("nproc-per-node", "1")
    if asked_ranks in {"gpu", "auto"} and (one_task_per_node or not has_own_size):
        gpus, remainder = divmod(sized.count_gpus(nodes, ntasks) or 0, nodes)
        if gpus and not remainder:
            command = command._replace(options={**command.options, "nproc-per-node": str(gpus)})
    ranks = command.ranks_per_node
    if ranks is None and "nproc-per-node" in command.options and not has_own_size:
        line = shlex.join(["torchrun", *_without_python(command)])
        raise SpecError(
            f"the number of ranks of torchrun is not known: nproc-per-node is {asked_ranks}",
            found="a job without a number of GPUs on each node" if asked_ranks in {"gpu", "auto"} else f"{asked_ranks}",
            remedy=f"give nodes x ranks: hpc-kit submit -j {nodes}xRANKS -- {line}",
        )
    # Another number of nodes, or --standalone on several, is a contradiction that check_launcher_size reports.
    if one_task_per_node and ranks is not None and ranks > 1 and command.nodes in {None, nodes}:
        launch = structs.replace(job.launch, launcher="torchrun", nproc_per_node=ranks)
        return structs.replace(job, launch=launch, resources=resources), command
    return job, command


def _with_size(job: Job, command: LauncherCommand | None) -> tuple[Resources, bool]:
    """Return the options with the launcher's numbers where the job has none, and whether the job has its own."""
    resources = job.resources
    if job.launch.starts_agents or any((resources.ntasks, resources.ntasks_per_node, resources.ntasks_per_gpu)):
        return resources, True
    if command is None or command.kind not in {"torchrun", "mpirun", "srun"}:
        return resources, False
    nodes = resources.nodes or command.nodes
    # `mpirun -n 8 -ppn 4`
    if nodes is None and command.ranks and command.ranks_per_node:
        nodes = -(-command.ranks // command.ranks_per_node)
    if command.ranks is not None:
        return structs.replace(resources, nodes=nodes or 1, ntasks=command.ranks), False
    return structs.replace(resources, nodes=nodes, ntasks_per_node=command.ranks_per_node or 1), False


def check_launcher_size(command: LauncherCommand, nodes: int, ranks: int) -> None:
    """Refuse a launcher whose own numbers are not those of the job."""
    own_nodes, own_ranks, total = command.nodes, command.ranks_per_node, command.ranks
    if own_nodes is not None and own_ranks is not None:
        total = own_nodes * own_ranks
    is_standalone = "standalone" in command.options and nodes > 1
    agrees = own_nodes in {None, nodes} and own_ranks in {None, ranks} if total is None else total == nodes * ranks
    if agrees and not is_standalone:
        return
    names = (*command.size_options, "standalone")
    given = [" ".join(command.words[name]) for name in names if command.words.get(name)]
    found = (
        f"{' '.join([command.kind, *given])}; the job has {format_count(nodes, 'node')} x {format_count(ranks, 'rank')}"
    )
    if is_standalone:
        own_nodes = nodes
    # The remedy must be a job that can exist: one node if the total does not divide among the nodes of this job.
    own_nodes = own_nodes or (1 if total and total % nodes else nodes)
    per_node = own_ranks or (-(-total // own_nodes) if total else ranks)
    words = command.program
    if command.kind == "torchrun":
        launcher = ("python", "-m", LEGACY_LAUNCHER) if command.passes_local_rank else ("torchrun",)
        words = (*launcher, *_without_python(command))
    raise SpecError(
        f"{command.kind} and the job give different numbers of ranks",
        found=found,
        remedy=f"let the job give the numbers: {_submit_line(own_nodes, per_node, (*command.prefix, *words))}",
    )


def _without_python(command: LauncherCommand) -> tuple[str, ...]:
    """Return the words behind torchrun, without its options for the size and the rendezvous."""
    kept = [word for name, words in command.words.items() if name not in _OWN_RENDEZVOUS for word in words]
    program = command.program if "no-python" in command.options else command.program[1:]
    return (*kept, *(program[1:] if program[:1] == ("-m",) else program))


def _submit_line(nodes: int, ranks: int, program: Sequence[str], *settings: str) -> str:
    words = ["hpc-kit", "submit", "-j", f"{nodes}x{ranks}", *(word for each in settings for word in ("--set", each))]
    return shlex.join([*words, "--", *program])


def _launcher_error(
    launcher: str,
    nodes: int,
    ranks: int,
    reason: str,
    program: Sequence[str],
    command: LauncherCommand | None = None,
    *,
    on_cpus: bool = False,
) -> SpecError:
    """Return the error that names the line that works."""
    settings = []
    if launcher in {"mpirun", "horovodrun"}:
        settings.append("launch.launcher=mpirun")
        settings += [f"env.{word}" for word in (_exported(command) if command else ()) if "=" in word]
    if command is not None and command.options.get("mixed-precision"):
        settings.append(f"env.ACCELERATE_MIXED_PRECISION={command.options['mixed-precision']}")
    if launcher == "accelerate" and (on_cpus or (command is not None and "cpu" in command.options)):
        # Without it, accelerate connects ranks on GPUs only.
        settings.append("env.ACCELERATE_USE_CPU=1")
    return SpecError(
        f"{launcher} in the command would not make one world of {format_count(nodes * ranks, 'rank')}",
        found=reason,
        remedy=f"remove it, because hpc-kit starts the ranks: {_submit_line(nodes, ranks, program, *settings)}",
    )


def _obstacle(job: Job, cluster: Cluster, command: LauncherCommand, *, even: bool) -> str | None:
    """Return the reason why the job cannot use this launcher."""
    launcher = job.launch.launcher
    if command.prefix:
        return f"{command.kind} comes after {command.prefix[0]}"
    if launcher not in {"srun", command.kind}:
        return f"[launch] launcher = '{launcher}'"
    if command.kind == "srun":
        refused = [
            word
            for name, words in command.words.items()
            if name not in command.size_options or not re.fullmatch(r"[1-9]\d*", command.options[name])
            for word in words
        ]
        return f"the script starts the ranks by srun, and ignores {' '.join(refused)}" if refused else None
    if cluster.environment.is_container:
        return f"cluster {cluster.name} has a container, in which only srun starts ranks"
    if job.component:
        return "the job is heterogeneous"
    if command.kind == "torchrun":
        return None if even else "the nodes have different numbers of ranks"
    # The script starts Open MPI with --bind-to none. -x goes to [env].
    unbound = {"bind-to"} if command.options.get("bind-to") == "none" else set[str]()
    others = command.words.keys() - {"x", *unbound, "allow-run-as-root", "oversubscribe", *command.size_options}
    shown = " ".join(word for name in command.words if name in others for word in command.words[name])
    return f"its options {shown}: Open MPI also reads OMPI_MCA_... in [env]" if others else None


def _under_mpirun(job: Job, program: str, command: LauncherCommand) -> tuple[Job, tuple[str, ...]]:
    mpich = PurePath(program).name in {"mpiexec.hydra", "mpirun.mpich"}
    launch = structs.replace(job.launch, launcher="mpirun", mpi="mpich" if mpich else job.launch.mpi)
    # Every rank gets the whole environment, so that `-x NAME` without a value needs nothing.
    exported = [word.partition("=") for word in _exported(command)]
    env = {name: value for name, equals, value in exported if equals}
    notes = ["using [launch] launcher = 'mpirun' for mpirun in the command"]
    if env:
        notes.append(f"setting {', '.join(env)} in [env] for -x of mpirun in the command")
    return structs.replace(job, launch=launch, env={**job.env, **env}), tuple(notes)


def _exported(command: LauncherCommand) -> tuple[str, ...]:
    """Return the values of mpirun's `-x NAME[=value]`."""
    return tuple(word for word in command.words.get("x", ()) if word not in {"-x", "--x"})


def _program_of_agents(command: LauncherCommand) -> tuple[str, ...]:
    """Return the program, with the argument that torch.distributed.launch adds. torchrun replaces the variable."""
    if not command.passes_local_rank:
        return command.program
    # The argument follows the words that start the program: `FILE`, `python FILE` or `python -m MODULE`.
    start = 1 if "no-python" in command.options else 3 if command.program[1] == "-m" else 2
    return (*command.program[:start], "--local-rank=${local_rank}", *command.program[start:])


def _under_agents(job: Job, command: LauncherCommand, nodes: int, ranks: int) -> tuple[Job, tuple[str, ...]]:
    """Return the job with one agent per node. What the job asks for each rank is asked for all ranks of the node."""
    kept = [name for name in command.words if name not in {*_OWN_RENDEZVOUS, "m", "module", "no-python"}]
    sizes = {"nnodes", "nproc-per-node"}
    # A range such as 1:4 is replaced by the job's number.
    replaced = _OWN_RENDEZVOUS - {name for name in sizes if command.options.get(name, "").isdigit()}
    dropped = [" ".join(words) for name, words in command.words.items() if name in replaced]
    resources = job.resources
    cpus = resources.cpus_per_task
    # Slurm gives a task one CPU, which all ranks of an agent would share. With GPUs, the site has a default for each.
    if cpus is None and resources.cpus_per_gpu is None and not any(getattr(resources, name) for name in GPU_FIELDS):
        cpus = 1
    gpus = resources.gpus_per_task
    if gpus is not None and not job.launch.starts_agents:
        gpus = option_values.multiply_gpus(str(gpus), ranks)
    if not job.launch.starts_agents:
        resources = structs.replace(
            resources,
            nodes=nodes,
            ntasks=None,
            ntasks_per_node=1,
            ntasks_per_gpu=None,
            cpus_per_task=None if cpus is None else cpus * ranks,
            gpus_per_task=gpus,
        )
    options = (*job.launch.options, *(word for name in kept for word in command.words[name]))
    launch = structs.replace(job.launch, launcher="torchrun", nproc_per_node=ranks, options=options)
    note = f"using one torchrun agent per node: --nnodes={nodes} --nproc-per-node={ranks}, with the job's rendezvous"
    notes = (note, *((f"ignoring {', '.join(dropped)} of torchrun in the command",) if dropped else ()))
    return structs.replace(job, resources=resources, launch=launch), notes
