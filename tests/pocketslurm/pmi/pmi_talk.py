"""PMI requests of three tasks on two nodes, with the answers of Slurm 22.05.8. `%r` is the rank."""

ONE = {
    "cmd=init pmi_version=1 pmi_subversion=1": "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
    "cmd=get_maxes": "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024",
    "cmd=get_appnum": "cmd=appnum rc=0 appnum=-1",
    "cmd=get_universe_size": "cmd=universe_size rc=0 size=3",
    "cmd=put kvsname=x key=k%r value=a=b;%r": "cmd=put_result rc=0",
    "1:cmd=get kvsname=x key=k1": "cmd=get_result rc=1",
    "cmd=barrier_in": "cmd=barrier_out rc=0",
    "cmd=get kvsname=x key=k2": "cmd=get_result rc=0 value=a=b;2",
    "cmd=get kvsname=x key=PMI_process_mapping": "cmd=get_result rc=0 value=(vector,(0,1,2),(1,1,1))",
    "cmd=get kvsname=x key=none": "cmd=get_result rc=1",
    "cmd=finalize": "cmd=finalize_ack rc=0",
}

_INIT = "114   cmd=fullinit-response;rc={};pmi-version=2;pmi-subversion=0;rank=%r;size=3;appnum=-1;debugged=FALSE;"

TWO = {
    "cmd=init pmi_version=2 pmi_subversion=0": "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0",
    "cmd=fullinit;pmijobid=1.0;pmirank=%r;threaded=FALSE;": f"{_INIT.format(0)}pmiverbose=FALSE;",
    "cmd=info-getjobattr;key=PMI_process_mapping;": (
        "76    cmd=info-getjobattr-response;rc=0;found=TRUE;value=(vector,(0,1,2),(1,1,1));"
    ),
    "cmd=info-getjobattr;key=universeSize;": "53    cmd=info-getjobattr-response;rc=0;found=TRUE;value=3;",
    "cmd=info-getjobattr;key=mpi_reserved_ports;": "46    cmd=info-getjobattr-response;rc=0;found=FALSE;",
    "cmd=kvs-put;key=k%r;value=v%r;": "26    cmd=kvs-put-response;rc=0;",
    "1:cmd=kvs-get;jobid=1.0;srcid=0;key=k1;": "38    cmd=kvs-get-response;rc=0;found=FALSE;",
    "cmd=kvs-fence;": "28    cmd=kvs-fence-response;rc=0;",
    "cmd=kvs-get;jobid=1.0;srcid=0;key=k2;": "46    cmd=kvs-get-response;rc=0;found=TRUE;value=v2;",
    "cmd=info-getnodeattr;key=a;wait=FALSE;": "47    cmd=info-getnodeattr-response;rc=0;found=FALSE;",
    "cmd=finalize;": "27    cmd=finalize-response;rc=0;",
}


def answers(talk: dict[str, str], task: int) -> list[str]:
    """The answers to one task, in order."""
    asked = {request: reply for request, reply in talk.items() if request[1] != ":" or request[0] == str(task)}
    return [reply.replace("%r", str(task)) for reply in asked.values()]
