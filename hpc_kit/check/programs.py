"""The programs that checks know: launchers, wrappers, shells, and programs that only prepare or clean up."""

from __future__ import annotations

import re
from typing import NamedTuple

from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.spec.launcher_command import AGENT_MODULES, MPIRUN

MULTIPLIERS = ("srun", "mpirun")
"""Launchers that start their program several times, on several nodes."""


class AgentOptions(NamedTuple):
    """The options of a launcher that starts several processes on its own node, by meaning."""

    nodes: str
    node_rank: str
    host: str
    port: str
    processes: str


AGENTS = {
    "torchrun": AgentOptions("nnodes", "node-rank", "master-addr", "master-port", "nproc-per-node"),
    "accelerate": AgentOptions("num-machines", "machine-rank", "main-process-ip", "main-process-port", "num-processes"),
    "deepspeed": AgentOptions("num-nodes", "node-rank", "master-addr", "master-port", "num-gpus"),
    # composer counts no nodes, but the processes of all nodes: --world_size.
    "composer": AgentOptions("", "node-rank", "master-addr", "master-port", "nproc"),
}
"""Launchers that start several processes on their own node. accelerate alone counts the processes of all nodes."""

AGENT_WORDS = (*AGENTS, "tune", *AGENT_MODULES)
"""Texts of which each command line with one of these launchers has one; torchtune's `tune run` starts torchrun."""

MPIRUN_WORDS = tuple(sorted(MPIRUN))

CONTAINER_VALUED = frozenset({
    "-B", "--bind", "--env", "--env-file", "-H", "--home", "-W", "--workdir", "--pwd", "--cwd", "-o", "--overlay", "-S",
    "--scratch", "--mount", "--network", "--security", "--app", "--fusemount", "--hostname", "--add-caps",
    "--apply-cgroups", "--arch", "--authfile", "--blkio-weight", "--blkio-weight-device", "--cdi-dirs", "--containlibs",
    "--cpu-shares", "--cpus", "--cpuset-cpus", "--cpuset-mems", "--data", "--device", "--dns", "--docker-host",
    "--drop-caps", "--memory", "--memory-reservation", "--memory-swap", "--netns-path", "--network-args", "--no-mount",
    "--pem-path", "--pids-limit", "--platform",
})  # fmt: skip
"""Options of apptainer with a value."""


class WrapperOptions(NamedTuple):
    """Short options with a value, as letters, and the number of words before the program."""

    valued: str = ""
    positional: int = 0


WRAPPERS = {
    "command": WrapperOptions(),
    "env": WrapperOptions("uCS"),
    "exec": WrapperOptions("a"),
    "ionice": WrapperOptions("cnp"),
    "nice": WrapperOptions("n"),
    "nohup": WrapperOptions(),
    "numactl": WrapperOptions("NmCpi"),
    "setsid": WrapperOptions(),
    "stdbuf": WrapperOptions("ioe"),
    "time": WrapperOptions("fo"),
    "timeout": WrapperOptions("sk", 1),
    "unbuffer": WrapperOptions(),
}
"""Programs that start another."""

REMOTE = {
    "ssh": WrapperOptions("BbcDEeFIiJLlmOoPpQRSWw", 1),
    "pdsh": WrapperOptions("wxftulRNIcgXM"),
    "clush": WrapperOptions("wxgXflutOm"),
}
"""Programs that start a command on other hosts."""

PYTHON = lazy_pattern(r"(?:python|pypy)[0-9.]*\Z")

SHELL_BUILTINS = frozenset({
    ".", ":", "[", "alias", "bg", "break", "builtin", "cd", "continue", "declare", "dirs", "disown", "echo",
    "enable", "eval", "exit", "export", "false", "fc", "fg", "getopts", "hash", "help", "history", "jobs", "kill",
    "let", "local", "logout", "mapfile", "ml", "module", "popd", "printf", "pushd", "pwd", "read", "readarray",
    "readonly", "return", "set", "shift", "shopt", "source", "suspend", "test", "times", "trap", "true", "type",
    "typeset", "ulimit", "umask", "unalias", "unset", "wait",
})  # fmt: skip
"""Commands that bash runs itself."""

HELPER_PROGRAMS = frozenset({
    "aklog", "apptainer", "awk", "basename", "cat", "chmod", "chown", "cksum", "clear", "cmp", "command", "conda",
    "cp", "curl", "cut", "date", "dcgmi", "dd", "df", "diff", "dirname", "docker", "dos2unix", "du", "echo", "enroot",
    "env", "false", "file", "find", "free", "git", "grep", "gunzip", "gzip", "head", "hf", "hostname",
    "huggingface-cli", "ibstat", "id", "ifconfig", "install", "ip", "kinit", "ldd", "less", "ln", "ls", "lscpu",
    "lspci", "md5sum", "mkdir", "mktemp", "module", "more", "mount", "mv", "nl", "nproc", "numactl", "nvcc",
    "nvidia-cuda-mps-control", "nvidia-smi", "paste", "ping", "pip", "pip3", "pkill", "printenv", "printf", "ps",
    "pwd", "ray", "rclone", "readlink", "realpath", "rev", "rm", "rocm-smi", "rsync", "sacct", "sacctmgr",
    "sbatch", "sbcast", "scancel", "scontrol", "scp", "sed", "seq", "sha256sum", "sinfo", "singularity", "sleep",
    "sort", "split", "squeue", "sstat", "stat", "stdbuf", "sync", "tail", "tar", "tee", "test", "time", "top", "touch",
    "tr", "true", "ulimit", "umount", "uname", "uniq", "unzip", "virtualenv", "wandb", "wc", "wget", "which",
    "whoami", "xargs", "zcat",
})  # fmt: skip
"""Programs that prepare, look or clean up; a job is not run for their sake."""

COPIES = frozenset({"aws", "cp", "gsutil", "gzip", "mv", "pigz", "rclone", "rsync", "scp", "tar", "zip"})
"""Programs that copy or pack files."""

AUXILIARY_NAME = lazy_pattern(
    r"(?i)(?:(?!train|tun(?:e|ing)).)*?(?<![a-z])(analy|clean|collect|convert|eval|export|extract|generat|infer|merge|plot"
    r"|post(?![-_]?train)|predict|preproc|report|score|serve|test|valid)"
)
"""Names of programs and jobs that prepare data, or work with the results of a training."""

SERVERS = frozenset({
    "code", "code-server", "jupyter", "jupyter-lab", "jupyter-notebook", "mlflow", "ollama", "tensorboard", "vllm",
})  # fmt: skip
SERVER_MODULES = lazy_pattern(r"(vllm\.entrypoints|sglang\.launch_server|http\.server|tensorboard|jupyter)")
"""Programs and modules that serve until something ends them."""

_MONITORS = frozenset({"dstat", "htop", "iostat", "nvtop", "top", "vmstat", "watch"})


MAY_RUN_FOREVER = _MONITORS | SERVERS | {"nvidia-smi", "ray", "rocm-smi", "sleep", "tail"}
"""Programs that may run until something ends them."""


def runs_forever(texts: list[str]) -> bool:
    """Tell whether a command runs until it is ended: a monitor, a server, `tail -f`, `sleep infinity`."""
    name, rest = texts[0].rpartition("/")[2], texts[1:]
    if PYTHON.match(name) and rest[:1] == ["-m"] and len(rest) > 1:
        return bool(SERVER_MODULES.match(rest[1]))
    # `top -bn1`; `watch -n 5` names the pause, and `watch -g` ends.
    brief = r"-\w*g|--chgexit" if name == "watch" else r"-[a-zA-Z]*n(\d|\Z)|--(version|help)\b|-[hV]\Z"
    runs_anyway = {"tail", "ray", "nvidia-smi", "rocm-smi"}
    if name not in MAY_RUN_FOREVER or (name not in runs_anyway and any(re.match(brief, text) for text in rest)):
        return False
    if name in {"nvidia-smi", "rocm-smi"}:
        # `-l 5`, `-lms 100`, `--loop=5`; dmon and pmon, unless they count.
        loops = any(re.match(r"(-l\d*|-lms|--loop(-ms)?)(=|\Z)", text) for text in rest)
        return loops or (bool({"dmon", "pmon"} & set(rest)) and "-c" not in rest)
    if name == "ray":
        return rest[:1] == ["start"] and "--block" in rest
    if name == "tail":
        return any(re.fullmatch(r"-\w*[fF]|--follow.*", text) for text in rest) and "--pid" not in " ".join(rest)
    if name in {"jupyter", "vllm", "ollama", "mlflow", "code", "sleep"}:
        return bool({"lab", "notebook", "serve", "server", "ui", "tunnel", "infinity", "inf"} & set(rest[:1]))
    if name in {"vmstat", "iostat", "dstat"}:
        return bool(rest) and sum(text.isdigit() for text in rest) == 1
    return name in _MONITORS | {"tensorboard", "jupyter-lab", "jupyter-notebook", "code-server"}
