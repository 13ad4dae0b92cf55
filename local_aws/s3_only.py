"""An S3 endpoint for the length of one command: moto's server on a free loopback port.

    python -m local_aws.s3_only --bucket NAME -- COMMAND ...

The command runs with AWS_ENDPOINT_URL and dummy credentials set and the bucket made. What it
stores is in memory and gone afterwards.
"""

import argparse
import logging
import os
import signal
import subprocess
import sys

import boto3
from moto.server import ThreadedMotoServer


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local_aws.s3_only", description=__doc__.split("\n")[0])
    parser.add_argument("--bucket", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND ...")
    given = parser.parse_args(argv)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("no command given")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # one line a request otherwise
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environ = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    os.environ |= environ
    # Credentials of this machine's owner are for AWS, not for this endpoint.
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        os.environ.pop(name, None)
    boto3.client("s3").create_bucket(Bucket=given.bucket)
    try:
        return _run(command)
    finally:
        server.stop()


def _run(command: list[str]) -> int:
    """Run the command to its own end: Ctrl-C reaches it from the terminal, a SIGTERM is passed on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(command, preexec_fn=_heed_ctrl_c)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.wait()


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignoring is inherited, and the command must not ignore it


if __name__ == "__main__":
    sys.exit(main())
