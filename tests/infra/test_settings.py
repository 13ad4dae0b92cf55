"""Settings come from the CDK context, and an error names the key."""

import pytest

from infra.settings import LOG_RETENTION, InvalidSetting, Settings


def test_without_any_context_everything_has_a_default() -> None:
    settings = Settings.from_mapping({})
    assert [settings.prefix, settings.sandbox, settings.image_uri] == ["diloco", False, None]
    assert settings.payload_days == 35


def test_the_command_line_gives_texts() -> None:
    settings = Settings.from_mapping({"sandbox": "true", "payload_days": "40", "log_retention_days": "7"})
    assert settings.sandbox is True
    assert settings.payload_days == 40
    assert settings.log_retention == LOG_RETENTION[7]


def test_lists_are_separated_by_commas() -> None:
    settings = Settings.from_mapping({
        "subnet_ids": "subnet-0123abcd,subnet-4567cdef", "security_group_ids": "sg-0123abcd",
        "read_uris": "s3://data-sets/text/,s3://models/",
    })  # fmt: skip
    assert settings.subnet_ids == ("subnet-0123abcd", "subnet-4567cdef")
    assert settings.read_uris == ("s3://data-sets/text/", "s3://models/")


@pytest.mark.parametrize(
    "given", [{"subnet_ids": "subnet-0123abcd"}, {"security_group_ids": "sg-0123abcd"},
              {"subnet_ids": "subnet-0123abcd", "security_group_ids": "sg-0123abcd",
               "isolated_network": "true"}],
)  # fmt: skip
def test_a_network_is_whole_or_ours(given: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting, match="go together|exclude each other"):
        Settings.from_mapping(given)


def test_entries_of_cdk_itself_are_left_alone() -> None:
    context = {"@aws-cdk/core:flag": True, "aws:cdk:bundling-stacks": ["*"], "availability-zones:account": []}
    assert Settings.from_mapping(context) == Settings.from_mapping({})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sandbox", "perhaps"),
        ("payload_days", 28),  # a job may take 28 days
        ("log_retention_days", 8),
        ("prefix", "Upper"),
        ("prefix", "x" * 41),
        ("image_uri", "not an image"),
        ("image_uri", ""),
        ("base_image", "a b"),
        ("imageuri", "a/b:c"),  # unknown
        ("subnet_ids", "subnet-1"),
        ("security_group_ids", "default"),
        ("read_uris", "s3://bucket"),
        ("read_uris", "s3://bucket/*"),
        ("secret_arn", "my-secret"),
        ("permissions_boundary", "a b"),
    ],
)
def test_a_bad_setting_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(InvalidSetting, match=rf"CDK context: {key}: "):
        Settings.from_mapping({key: value})
