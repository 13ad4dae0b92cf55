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
    ],
)
def test_a_bad_setting_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(InvalidSetting, match=rf"CDK context: {key}: "):
        Settings.from_mapping({key: value})
