"""The images under test: a stand-in for the public base, and the real Dockerfile upon it.

No registry is needed: the base is Debian with a Python, made by mmdebstrap, which has what the public
image has (`python`, pip, certificates) and, beside that, this machine's way to its package index.
"""

import hashlib
import os
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.container.engine import CACHE, ROOT, build, podman

BASE: Final = "localhost/stand-in-base"
TRAINER: Final = "localhost/diloco-trainer:tested"
PACKAGES: Final = "python3,python3-pip,python-is-python3,ca-certificates"

_DOCKERFILE: Final = """\
FROM scratch
ADD base.tar /
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.conf /etc/pip.conf
RUN mkdir -p /opt/wheels
"""


def base() -> str:
    """The stand-in base's name, made where it is missing (half a minute)."""
    pip_conf = _pip_conf()
    key = hashlib.sha256(f"{PACKAGES}{_DOCKERFILE}{pip_conf}".encode()).hexdigest()[:12]
    name = f"{BASE}:{key}"
    if podman("images", "--quiet", name).strip():
        return name
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        context = Path(folder)
        (context / "Dockerfile").write_text(_DOCKERFILE)
        (context / "pip.conf").write_text(pip_conf)
        authorities = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
        assert authorities is not None, "this machine has no file of certificate authorities"
        (context / "ca-certificates.crt").write_bytes(Path(authorities).read_bytes())
        _bootstrap(context / "base.tar")
        build(context / "Dockerfile", tag=name, context=context)
    return name


def trainer() -> str:
    """The trainer's image by the Dockerfile as it stands; layers that nothing changed are kept."""
    build(
        ROOT / "container" / "Dockerfile",
        tag=TRAINER,
        context=ROOT,
        arguments={"BASE_IMAGE": base()},
    )
    return TRAINER


def _bootstrap(target: Path) -> None:
    shared = Path("/dev/shm")
    scratch = str(shared) if os.access(shared, os.W_OK) else tempfile.gettempdir()  # thousands of small files
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        subprocess.run(
            [
                *("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "--quiet"),
                *("--dpkgopt=force-unsafe-io", "bookworm", str(target)),
            ],
            env={**os.environ, "TMPDIR": folder},
            check=True,
        )


def _pip_conf() -> str:
    """This machine's index, if pip is told of one; its certificates and wheels by fixed paths."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    lines = ["[global]", "cert = /etc/ssl/certs/ca-certificates.crt", "find-links = /opt/wheels"]
    for line in told.splitlines():
        name, _, value = line.partition("=")
        if name.endswith(".index-url"):
            lines.append(f"index-url = {value.strip(chr(39))}")
    return "\n".join([*lines, ""])
