"""`hpc-kit cancel`."""

from __future__ import annotations

import click

from hpc_kit.cli.output import CLUSTER_OPTION, JSON_OPTION, RUNS_OPTION, group_jobs, open_session


@click.command("cancel")
@click.argument("words", nargs=-1, required=True, metavar="JOB|ID...")
@CLUSTER_OPTION
@RUNS_OPTION
@JSON_OPTION
def command(words: tuple[str, ...], cluster: str | None, as_json: bool) -> None:
    """Cancel jobs by id, array elements (12_3), or all jobs of a name. Print the previous state of each.

    A launch over ssh receives the same signal as by Ctrl-C, on the machine where it was started.

    Exit status: 0 cancelled or already ended; 1 unknown job (then none is cancelled), or scancel refuses.
    """
    from hpc_kit.runs.cancel import cancel, needs_slurm

    place = open_session(cluster, require_answer=True)
    if needs_slurm(words, place.runs):
        place.client.check_available(place.cluster.name)
    before = cancel(list(words), place.runs, place.client, cluster=place.cluster.name)
    if as_json:
        import json

        told = [{"job_id": each.job_id, "name": each.name, "was": str(each.state)} for each in before]
        click.echo(json.dumps(told, indent=2))
        return
    going = {each.job_id for each in before if each.status is not None and not each.state.finished}
    for chosen, text in ((True, "cancelled: was"), (False, "had ended already:")):
        for row in group_jobs([each for each in before if (each.job_id in going) is chosen]):
            click.echo(f"{row.job_id:>8}  {row.name}  {text} {row.text.partition(': ')[0]}")
