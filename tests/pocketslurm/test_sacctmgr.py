"""sacctmgr and sshare: what Slurm 22.05 says of a database in which nothing has been entered."""

from __future__ import annotations

import pytest

from tests.pocketslurm.conftest import Slurm

USERS = "      User   Def Acct     Admin \n---------- ---------- --------- \n"
ACCOUNTS = (
    "   Account                Descr                  Org \n"
    "---------- -------------------- -------------------- \n"
    "      root default root account                 root \n"
)
ASSOCIATED = (
    "User|Def Acct|Admin|Cluster|Account|Partition|Share|Priority|MaxJobs|MaxNodes|MaxCPUs|MaxSubmit|MaxWall|"
    "MaxCPUMins|QOS|Def QOS"
)
NO_PRIVILEGE = "Your user doesn't have privilege to perform this action"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show user", USERS),
        ("show users", USERS),
        ("list user root -n -P", ""),
        ("-n -s list user root format=account%256", ""),
        ("list -n user root withassoc format=maxsubmitjobsperuser", ""),
        ("show account", ACCOUNTS),
        ("list account root", ACCOUNTS),
        ("list account name=x -n", ""),
        ("-n -P show assoc format=account", "root\n"),
        ("show assoc where account=root format=account%30,qos,user -n", f"{'root':>30} {'normal':>20} {'':>10} \n"),
        ("-nP show assoc format=Account,QOS,Partition", "root|normal|\n"),
        ("-n list associations user=root", ""),
        ("show assoc account=x,root cluster=embedded format=user,acc%5 -p", "User|Account|\n|root|\n"),
        ("show assoc format=maxsubmitjobsperuser,maxjobsperuser -P", "MaxSubmitPU|MaxJobsPU\n|\n"),
        ("show clusters format=Cluster --noheader --parsable2", "embedded\n"),
        ("show qos format=name,priority,maxwall -P", "Name|Priority|MaxWall\nnormal|0|\n"),
        ("list qos -n -P format=name,maxsubmitpu,maxjobsperuser", "normal||\n"),
        ("list qos where name=foo -n", ""),
        ("-n list qos normal format=maxsubmitjobsperuser", f"{'':>11} \n"),
        ("show tres -nP", "cpu||1\nmem||2\nenergy||3\nnode||4\nbilling||5\nfs|disk|6\nvmem||7\npages||8\n"),
        (
            "show user withassoc -P",
            f"{ASSOCIATED}\n",
        ),
        ("--version", "slurm 22.05.8\n"),
    ],
)
def test_what_is_asked_for_is_shown(slurm: Slurm, words: str, said: str) -> None:
    assert slurm.said("sacctmgr", *words.split()) == said


def test_associations_and_qos_have_all_of_slurms_columns(slurm: Slurm) -> None:
    head, dashes, row = slurm.said("sacctmgr", "show", "assoc").splitlines()
    assert head == (
        "   Cluster    Account       User  Partition     Share   Priority GrpJobs       GrpTRES GrpSubmit     GrpWall "
        "  GrpTRESMins MaxJobs       MaxTRES MaxTRESPerNode MaxSubmit     MaxWall   MaxTRESMins                  QOS "
        "  Def QOS GrpTRESRunMin "
    )
    assert [len(part) for part in dashes.split()] == [
        *(10, 10, 10, 10, 9, 10, 7, 13, 9, 11, 13, 7, 13, 14, 9, 11, 13, 20, 9, 13)
    ]
    assert row.split() == ["embedded", "root", "1", "normal"]
    head, row = slurm.said("sacctmgr", "-P", "show", "qos").splitlines()
    assert head == (
        "Name|Priority|GraceTime|Preempt|PreemptExemptTime|PreemptMode|Flags|UsageThres|UsageFactor|GrpTRES|GrpTRESMins|"
        "GrpTRESRunMin|GrpJobs|GrpSubmit|GrpWall|MaxTRES|MaxTRESPerNode|MaxTRESMins|MaxWall|MaxTRESPU|MaxJobsPU|"
        "MaxSubmitPU|MaxTRESPA|MaxJobsPA|MaxSubmitPA|MinTRES"
    )
    assert row == "normal|0|00:00:00|||cluster|||1.000000" + "|" * 17


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-i add account x", " Problem adding accounts: Access/permission denied\n"),
        ("-i add user y account=root", " Problem adding users: Access/permission denied\n"),
        (
            "-i modify account root set description=x",
            f"sacctmgr: error: {NO_PRIVILEGE}\n Error with request: Access/permission denied\n",
        ),
        ("foo", "invalid keyword: foo\n"),
        ("show user format=foo", "Unknown field 'foo'\n"),
        ("show user foo=bar", " Unknown condition: foo=bar\n Use keyword 'set' to modify value\n"),
        ("show user --json", "sacctmgr: unrecognized option '--json'\nTry \"sacctmgr --help\" for more information\n"),
    ],
)
def test_what_cannot_be_is_refused_in_slurms_words(slurm: Slurm, words: str, said: str) -> None:
    assert slurm.refused("sacctmgr", *words.split()) == (1, said)


def test_other_records_are_none_here(slurm: Slurm) -> None:
    assert slurm.refused("sacctmgr", "show", "coordinator")[1].startswith("No valid entity in list command\n")
    assert slurm.refused("sacctmgr")[0] == 1


def test_shares_are_those_of_nobody(slurm: Slurm) -> None:
    assert slurm.said("sshare") == (
        "Account                    User  RawShares  NormShares    RawUsage  EffectvUsage  FairShare \n"
        "-------------------- ---------- ---------- ----------- ----------- ------------- ---------- \n"
        "root                                                             0      0.000000            \n"
    )
    assert slurm.said("sshare", "-nP", "-u", "root") == "root||||0|0.000000|\n"
    assert (
        slurm.said("sshare", "-P", "-A", "x") == "Account|User|RawShares|NormShares|RawUsage|EffectvUsage|FairShare\n"
    )
    assert slurm.said("sshare", "-n", "-o", "Account%30,User,fairshare", "-u", "x") == f"{'root':>30}{' ' * 23}\n"
    assert slurm.refused("sshare", "-o", "foo") == (1, 'sshare: error: Invalid field requested: "foo"\n')
    assert slurm.said("sshare", "-U", "--noheader", "--format", "Account%256") == ""
