"""An AWS account on this machine, for laptops and tests.

    python -m local_aws                      # start it, print its `export` lines, run until Ctrl-C
    python -m local_aws -- cdk deploy --all  # start it, run one command against it, stop it
    python -m local_aws setup                # only make its own virtual environment (.venv-aws)
    python -m local_aws --runtime podman --image IMAGE   # jobs run in this image, in containers

The rest of the project knows it as an endpoint URL and nothing else. ministack, which emulates
CloudFormation, IAM, S3, Step Functions, Lambda, ECR and Logs in one process, does most of the work;
what this project needs and ministack lacks is added to that process by the modules here:

    server.py          the process itself: installs the rest, serves, ends with its parent
    iam.py             who may do what: every call below asks it
    sagemaker_api.py   CreateTrainingJob and its siblings, over validation.py and training_job.py
    training_job.py    the life of one job: a command (job_command.py) that runs as a process (job_process.py)
                       or a container (job_container.py, endpoint_network.py), and its folder
                       (job_folder.py); lines go to CloudWatch (job_logs.py), and the image is looked up
                       (job_image.py)
    checkpoint_sync.py CheckpointConfig: a folder and its copy in S3, looked after by instance_watch.py
    faults.py          what is done to jobs on request: throttling, no capacity, a spot instance taken back, a
                       host that vanishes, a torn copy of checkpoints. Start here to try a failure
    step_functions.py  createTrainingJob.sync, over the interpreter's branches (branches.py)
    aws_sdk_task.py    arn:aws:states:::aws-sdk:* tasks
    codebuild.py       builds that run their buildspec (build.py) with a stand-in for docker
                       (stand_in_docker.py)
    service_quotas.py  the quotas that a run is checked against
    kept_resources.py  resources of CloudFormation without an effect here: budgets, saved queries
    s3_conditions.py   what bucket policies can know of conditional writes
    refusals.py        calls nobody emulates are refused by name

supervisor.py starts and ends that process from the project's own environment, environment.py makes the other
one, and guard.py ends what a killed server leaves.

What it is not: unless asked for podman, the image of a training job is looked up and not run (the job's
command runs with the project's own Python), without network isolation or a limit on memory; one instance a
job, no limit on disk, one account.
State lives in memory and ends with the server.
"""
