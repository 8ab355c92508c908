"""Findings as JSON, SARIF and annotations of GitHub."""

from __future__ import annotations

import json

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.report_formats import CheckReport, format_github, format_json, format_sarif
from hpc_kit.check.rules import check

TEXT = "#!/bin/bash\n#SBATCH --requeue\nexport MASTER_PORT=29500\nsrun python t.py --resume 100% | tee log\n"
REPORT = CheckReport("jobs/my run.sbatch", check(BatchScript(TEXT)), ["rules"], {})


def test_json_is_an_object_for_one_script_and_a_list_for_several() -> None:
    one = json.loads(format_json([REPORT]))
    assert one["name"] == "jobs/my run.sbatch"
    assert {finding["code"] for finding in one["findings"]} == {"KIT302", "KIT403", "KIT413"}
    assert one["findings"][0]["evidence"][0] == {"line": 2, "text": "#SBATCH --requeue"}
    assert json.loads(format_json([REPORT, REPORT])) == [one, one]


def test_sarif_has_a_rule_and_a_place_for_each_result() -> None:
    document = json.loads(format_sarif([REPORT], "1.2"))
    (run,) = document["runs"]
    driver, results = run["tool"]["driver"], run["results"]
    assert (document["version"], driver["version"]) == ("2.1.0", "1.2")
    for result in results:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "jobs/my%20run.sbatch"
        assert place["region"]["startLine"] >= 1
        assert result["level"] in {"error", "warning"}
    (port,) = [result for result in results if result["ruleId"] == "KIT302"]
    assert port["locations"][0]["physicalLocation"]["region"] == {"startLine": 3, "startColumn": 20}
    (replacement,) = port["fixes"][0]["artifactChanges"][0]["replacements"]
    assert replacement["insertedContent"]["text"].startswith("$((10000")


def test_sarif_without_findings_is_a_run_without_results() -> None:
    (run,) = json.loads(format_sarif([REPORT._replace(findings=[])], "1"))["runs"]
    assert (run["results"], run["tool"]["driver"]["rules"]) == ([], [])


def test_annotations_escape_what_the_runner_would_read() -> None:
    lines = format_github([REPORT._replace(name="a:b,c.sbatch")]).splitlines()
    assert len(lines) == len(REPORT.findings)
    assert lines[0].startswith("::warning file=a%3Ab%2Cc.sbatch,line=2,col=9,title=KIT413::")
    assert all("%0Ado: " in line for line in lines)
    assert "20000" in lines[1]
    assert "SLURM_JOB_ID %25 20000" in lines[1]
