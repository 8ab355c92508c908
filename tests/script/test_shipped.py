"""Every shipped job can be rendered, and check finds no fault in it."""

from __future__ import annotations

import pytest

from hpc_kit.spec import search_path
from tests.conftest import ROOT
from tests.golden import render_job

JOBS = search_path.file_names("jobs", ROOT)


@pytest.mark.parametrize("cluster", ["local", "slurm", "example-gpu"])
@pytest.mark.parametrize("job", JOBS)
def test_a_shipped_job_fits_every_kind_of_cluster(job: str, cluster: str) -> None:
    script = render_job(job, cluster, {})
    assert f"#SBATCH --job-name={job}\n" in script
    assert "spans" not in script.partition("set -euo")[0]
