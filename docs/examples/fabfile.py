"""Start a job on several hosts with the library fabric, instead of `hpc-kit launch`.

hpc-kit render --shell ddp_4node >job.sh
fab launch --script=job.sh --nodes=a,b,c,d
"""

import shlex
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from io import StringIO
from pathlib import Path

from fabric import Connection, task


@task
def launch(_, script, nodes):
    """Run the agent in a rendered script on each host. Each agent starts the ranks of its host."""
    agent = Path(script).read_text().split("<<'END_OF_AGENT'\n")[1].split("END_OF_AGENT\n")[0]
    name, run = time.strftime("%Y%m%d%H%M%S"), Path.cwd() / "runs" / "fabric"
    hosts = [Connection(host) for host in nodes.split(",")]
    # SSH_CONNECTION is CLIENT PORT SERVER PORT: all hosts meet at the address of the first one.
    master = hosts[0].run("echo; echo $SSH_CONNECTION", hide=True, in_stream=False).stdout.split()[-2]

    def start(node):
        file = f"{run}/{name}/agent-{node}.sh"
        hosts[node].run(f"umask 077; mkdir -p {shlex.quote(f'{run}/{name}')}", in_stream=False)
        hosts[node].put(StringIO(agent), file)
        command = shlex.join(["bash", file, str(node), master, name, nodes, f"{run}/{name}"])
        # The terminal ends with the connection, and its processes end with the terminal.
        return hosts[node].run(command, pty=True, warn=True, in_stream=False).exited

    with ThreadPoolExecutor(len(hosts)) as pool:
        for agent_ended in as_completed(pool.submit(start, node) for node in range(len(hosts))):
            if status := agent_ended.result():
                for host in hosts:
                    host.close()
                raise SystemExit(status)
