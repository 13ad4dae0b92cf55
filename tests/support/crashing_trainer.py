"""A trainer module that somebody has broken: importing it fails, and not for want of the module."""

1 / 0  # noqa: B018 - the fault


def toy() -> None:
    """Never reached."""
