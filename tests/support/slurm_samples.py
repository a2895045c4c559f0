"""Output of Slurm's commands, for the tests of the parsers."""

from typing import Any

from carme.slurm.parse import SQUEUE_FIELDS

NODES = """\
NodeName=gpu01 Arch=x86_64 CoresPerSocket=1  CPUAlloc=3 CPUEfctv=8 CPUTot=8 CPULoad=0.68 \
AvailableFeatures=fast,big ActiveFeatures=fast Gres=gpu:virtual-a100:4(S:0-1) GresDrain=N/A \
GresUsed=gpu:virtual-a100:3(IDX:0-1,3) NodeAddr=10.0.0.1 NodeHostName=vm Port=7001 Version=22.05.8 \
OS=Linux 6.1 #1 SMP PREEMPT_DYNAMIC  RealMemory=8000 AllocMem=2000 FreeMem=20923 Boards=1 \
State=ALLOCATED+PLANNED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A Partitions=gpu,all \
CfgTRES=cpu=8,mem=8000M,billing=8 AllocTRES=cpu=3 CurrentWatts=0 AveWatts=0
NodeName=cpu01 CPUAlloc=0 CPUTot=8 AvailableFeatures=(null) Gres=(null) GresUsed=gpu:0 NodeAddr=c1 \
RealMemory=8000 AllocMem=0 State=IDLE+DRAIN Partitions=cpu  \
Reason=bad disk, CPUTot=9 see a=b [root@2026-11-16T03:05:37]
something else
NodeName=
"""


PARTITIONS = """\
PartitionName=gpu AllowGroups=ALL AllowAccounts=lab,guests AllowQos=ALL AllocNodes=ALL Default=YES \
QoS=N/A DefaultTime=01:00:00 DisableRootJobs=NO Hidden=NO MaxNodes=4 MaxTime=1-08:00:00 MinNodes=0 \
MaxCPUsPerNode=UNLIMITED Nodes=gpu[01-02] PriorityTier=3 State=UP TotalCPUs=16 TotalNodes=2 \
DefMemPerCPU=500 MaxMemPerNode=UNLIMITED TRES=cpu=16,mem=16000M,gres/gpu=8,gres/gpu:a100=8
PartitionName=cpu AllowGroups=ALL DenyAccounts=guests Default=NO DefaultTime=NONE Hidden=YES \
MaxNodes=UNLIMITED MaxTime=UNLIMITED Nodes=cpu01 State=DRAIN
"""


RESERVATIONS = """\
ReservationName=maint StartTime=2026-11-16T04:05:37 EndTime=2026-11-16T05:05:37 Duration=01:00:00 \
Nodes=gpu[01-02] NodeCnt=2 CoreCnt=8 Features=(null) PartitionName=(null) Flags=SPEC_NODES,MAINT \
TRES=cpu=8 Users=sla,slb Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE
"""


SEPARATOR = "@5f3a@"


RUNNING = {
    "JobID": "12",
    "ArrayJobID": "5",
    "ArrayTaskID": "1",
    "Name": "evil UserId=root(0)\nJobId=13 | \x1f",
    "UserName": "sla",
    "UserID": "21001",
    "Account": "lab",
    "QOS": "normal",
    "Partition": "gpu",
    "State": "RUNNING",
    "Reason": "None",
    "NodeList": "gpu[01-02]",
    "NumNodes": "2",
    "NumCPUs": "4",
    "NumTasks": "2",
    "tres-alloc": "cpu=4,mem=2000M,node=2,billing=4,gres/gpu=4",
    "tres-per-job": "N/A",
    "tres-per-node": "gres:gpu:a100:2",
    "tres-per-task": "N/A",
    "SubmitTime": "2026-11-16T03:05:06",
    "EligibleTime": "2026-11-16T03:05:07",
    "StartTime": "2026-11-16T03:05:08",
    "EndTime": "2026-11-16T04:05:08",
    "TimeLimit": "1:00:00",
    "PriorityLong": "4294901755",
    "Dependency": "(null)",
    "Reservation": "(null)",
    "Feature": "(null)",
    "WorkDir": "/home/sla",
    "Comment": "(null)",
    "exit_code": "768",
    "RestartCnt": "1",
}


PENDING = {
    **RUNNING,
    "JobID": "5",
    "ArrayTaskID": "2-4%1",
    "Name": "none",
    "State": "PENDING",
    "Reason": "JobArrayTaskLimit",
    "NodeList": "",
    "StartTime": "2026-11-17T00:00:00",
    "EndTime": "N/A",
    "TimeLimit": "UNLIMITED",
    "ArrayJobID": "5",
}


def printed(*jobs: dict[str, str]) -> str:
    rows = ("".join(job[field] + SEPARATOR for field in SQUEUE_FIELDS) for job in jobs)
    return "".join(f"{row}\n" for row in rows)


def wrapped(value: int | None, infinite: bool = False) -> dict[str, Any]:
    return {"set": value is not None, "infinite": infinite, "number": value or 0}


OLD_JOB: dict[str, Any] = {
    "job_id": 4,
    "name": "none",
    "user_name": "slb",
    "user_id": 21002,
    "account": "lab",
    "qos": "normal",
    "partition": "gpu",
    "job_state": "RUNNING",
    "state_reason": "None",
    "nodes": "gpu[01-02]",
    "node_count": 2,
    "cpus": 2,
    "tasks": 2,
    "array_job_id": 0,
    "array_task_id": None,
    "array_task_string": "",
    "gres_detail": ["gpu:a100:1(IDX:3)", "gpu:t4:2(IDX:0,2)"],
    "tres_req_str": "cpu=2,mem=1000M,node=2,billing=2,gres/gpu=3",
    "tres_alloc_str": "cpu=2,mem=1000M,node=2,billing=2,gres/gpu=3",
    "submit_time": 100,
    "eligible_time": 100,
    "start_time": 110,
    "end_time": 3710,
    "time_limit": 60,
    "priority": 4294901756,
    "exit_code": 768,
    "current_working_directory": "/home/slb",
    "comment": "hello",
    "restart_cnt": 0,
}


NEW_JOB: dict[str, Any] = {
    **OLD_JOB,
    "job_state": ["RUNNING"],
    "node_count": wrapped(2),
    "cpus": wrapped(2),
    "tasks": wrapped(2),
    "array_job_id": wrapped(0),
    "array_task_id": wrapped(None),
    "submit_time": wrapped(100),
    "eligible_time": wrapped(100),
    "start_time": wrapped(110),
    "end_time": wrapped(3710),
    "time_limit": wrapped(60),
    "priority": wrapped(4294901756),
    "exit_code": {
        "status": ["ERROR"],
        "return_code": wrapped(3),
        "signal": {"id": wrapped(None), "name": ""},
    },
}


HEADER = (
    "JobIDRaw|JobID|JobName|User|State|NodeList|NNodes|NCPUS|AllocTRES|ReqTRES|Start|End|"
    "TimelimitRaw|ExitCode|TotalCPU|MaxRSS|ElapsedRaw"
)


ROWS = """
12|5_1|train|sla|COMPLETED|gpu[01-02]|2|4|cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=2G||\
2026-11-16T03:05:07|2026-11-16T03:06:07|60|0:0|01:30.500||60
12.batch|5_1.batch|batch||COMPLETED|gpu01|1|2|cpu=2||\
2026-11-16T03:05:07|2026-11-16T03:06:07||0:0|01:30.500|1500K|60
12.0|5_1.0|bash||COMPLETED|gpu01|1|2|cpu=2||\
2026-11-16T03:05:07|2026-11-16T03:06:07||0:0|00:00.500|3M|60
13|13|two
lines|slb|CANCELLED by 21002|None assigned|1|1||cpu=1,mem=500M,gres/gpu=3|\
Unknown|2026-11-16T03:06:07|UNLIMITED|0:15|00:00:00||0
14|14|bad|name|slb|FAILED|n1|1|1||cpu=1|Unknown|Unknown|60|1:0|00:00:00||0
15|15|next|slb|RUNNING|n1|1|1|cpu=1|cpu=1|2026-11-16T03:05:07|Unknown|60|0:0|00:00:00||7
""".strip()


CONFIG = """\
Configuration data as of 2026-11-16T06:30:00
AccountingStorageBackupHost = (null)
AccountingStorageEnforce = associations,limits,qos
AccountingStorageTRES   = cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu
ClusterName             = carme
"""


# 22.05 with `format=`: some columns have other names in the header.
ASSOCIATIONS = """\
Cluster|Account|User|Partition|ParentName|QOS|Def QOS|MaxJobs|MaxSubmit|MaxWall|MaxTRES|\
MaxTRESPerNode|MaxTRESMins|GrpJobs|GrpSubmit|GrpTRES
carme|root||||normal||||||||||
carme|root|root|||normal||||||||||
carme|other|||root|normal||||02:00:00||||||cpu=100,gres/gpu=3,mem=1500G
carme|sub|||other|normal||||02:00:00||||||
carme|sub|ann|||short||||02:00:00|gres/gpu:a100=1||gres/gpu=240|||
carme|research|||root|normal||||||||||
carme|research|ann|||normal,short|normal|4||||||||
carme|research|ben|||normal,short|normal|||||||||
faraway|research|ann|||normal||||||||||
"""


QOS_22 = """\
Name|Priority|GraceTime|Preempt|PreemptExemptTime|PreemptMode|Flags|UsageThres|UsageFactor|\
GrpTRES|GrpTRESMins|GrpTRESRunMins|GrpJobs|GrpSubmit|GrpWall|MaxTRES|MaxTRESPerNode|MaxTRESMins|\
MaxWall|MaxTRESPU|MaxJobsPU|MaxSubmitPU|MaxTRESPA|MaxJobsPA|MaxSubmitPA|MinTRES
normal|10|00:00:00|||cluster|||1.000000|||||||||||gres/gpu=6||||||
short|100|00:00:00|||cluster|DenyOnLimit,OverPartQOS||1.000000||||||||||01:00:00|gres/gpu=2|2|||||
"""


# 23.11 and later have two more columns in the middle.
QOS_24 = """\
Name|Priority|GraceTime|Preempt|PreemptExemptTime|PreemptMode|Flags|UsageThres|UsageFactor|\
GrpTRES|GrpTRESMins|GrpTRESRunMins|GrpJobs|GrpSubmit|GrpWall|MaxTRES|MaxTRESPerNode|MaxTRESMins|\
MaxWall|MaxTRESPU|MaxJobsPU|MaxSubmitPU|MaxTRESPA|MaxTRESRunMinsPA|MaxTRESRunMinsPU|MaxJobsPA|\
MaxSubmitPA|MinTRES
normal|0|00:00:00|||cluster|||1.000000|||||||||||||||||||
debug|69119|00:01:00|low||cluster|DenyOnLimit||1.000000|||||||node=8|||00:30:00||2|5||||||
shared|67679|00:00:00|low||cluster|DenyOnLimit||1.000000|||||||gres/gpu=2,node=1|||2-00:00:00|||\
5000||||||
long|0|00:00:00|||cluster|DenyOnLimit,PartitionTimeLimit||1.000000||||||||||7-00:00:00|cpu=128|4|\
32||||||
bigmem|300|00:00:00|||cluster|||1.000000|||||||||||mem=1.50T|4|32||||||
"""


USERS = """\
User|Def Acct
ann|research
ben|research
nobody|
"""
