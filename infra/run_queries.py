"""Saved queries of CloudWatch Logs Insights: a run's lines, put together from all its replicas' logs.

In the console: CloudWatch, Logs Insights, Queries; put the run's id in the place of RUN_ID. Every line of
a replica is in one log group, its stream named after the job and so after the run.
"""

from typing import Final

from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.replica_role import JOB_LOG_GROUP

# Job names have hyphens where a run's id has other signs, and end it after some 40 characters.
_FIELDS: Final = "fields @timestamp, @message, @logStream"
_OF_RUN: Final = "filter @logStream like /^RUN_ID/"
_RANK: Final = 'parse @logStream "-r*-a*/" as rank, attempt'

QUERIES: Final = {
    "a run's events": [_RANK, "filter @message like /event=/", "display @timestamp, rank, attempt, @message"],
    "a run's rounds": [
        "parse @message /rank=(?<rank>[0-9]+) round=(?<round>[0-9]+) /",
        "parse @message /train_loss=(?<train_loss>[0-9.eE+-]+)/",
        "parse @message /wait_s=(?<wait_s>[0-9.eE+-]+)/",
        "filter ispresent(train_loss)",
        "display @timestamp, rank, round, train_loss, wait_s",
    ],
    "why a run's replicas ended": [
        _RANK,
        "filter @message like /event=ended|Traceback|Error/",
        "display @timestamp, rank, attempt, @message",
    ],
}


def save_queries(scope: Construct, prefix: str) -> None:
    for number, (title, statements) in enumerate(QUERIES.items()):
        logs.CfnQueryDefinition(
            scope,
            f"Query{number}",
            name=f"{prefix}/{title}",
            query_string="\n| ".join([_FIELDS, _OF_RUN, *statements, "sort @timestamp asc", "limit 10000"]),
            log_group_names=[JOB_LOG_GROUP],
        )
