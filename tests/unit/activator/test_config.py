"""What a file of an activator may say, and what it is told when it says something else (ACT-40)."""

from pathlib import Path

import pytest

from brokerd.activator.config import load, memory_of
from brokerd.errors import ConfigError

GOOD = """
[log]
level = "debug"

[activator]
grace = "2s"

[[notification_service]]
name = "ops"
address = "tcp://far:4022"
queue = "activations"

[[application]]
name = "packer"
[application.trigger]
instance = "west"
queue = "warehouse_q"
[application.launch]
command = ["packer", "--fast"]
directory = "/srv"
environment = { LEVEL = "1" }
memory = "64MiB"
[application.instances]
min = 1
max = 4
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "activator.toml"
    path.write_text(text)
    return path


@pytest.mark.rule("ACT-40")
def test_its_three_groups_are_read(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD))
    assert config.state_dir == tmp_path / "activator.toml.state"
    assert config.grace == 2.0
    assert config.log.level == "debug"
    (service,) = config.services
    assert (service.name, service.broker, service.enabled) == ("ops", "main", True)
    (one,) = config.applications
    assert (one.instances.min, one.instances.max) == (1, 4)
    assert memory_of(one.launch) == 64 * 1024**2


@pytest.mark.rule("ACT-41")
@pytest.mark.parametrize(
    ("told", "fits"),
    [
        ({"instance": "west", "broker": "main", "queue": "warehouse_q"}, True),
        ({"instance": "east", "broker": "main", "queue": "warehouse_q"}, False),
        ({"instance": "west", "broker": "other", "queue": "warehouse_q"}, False),
        ({"instance": "west", "broker": "main", "queue": "shop_q"}, False),
        ({}, False),
    ],
)
def test_an_application_is_found_by_instance_broker_and_queue(
    tmp_path: Path, told: dict[str, str], fits: bool
) -> None:
    assert load(write(tmp_path, GOOD)).applications[0].trigger.fits(told) is fits


@pytest.mark.rule("ACT-40")
@pytest.mark.parametrize(
    ("was", "becomes", "words"),
    [
        (
            "min = 1",
            "min = 5",
            "line 24: application[1].instances.min: must not be above max, which is 4",
        ),
        ("max = 4", "max = 0", "line 25: application[1].instances.max: must be at least 1"),
        ('queue = "activations"', "", "line 8: notification_service[1].queue: is missing"),
        ("[log]", "[logs]", 'line 2: logs: unknown key; did you mean "log"?'),
        (
            'level = "debug"',
            'level = "loud"',
            "line 3: log.level: must be one of: debug, info, warning, error",
        ),
        (
            'command = ["packer", "--fast"]',
            "command = []",
            "line 19: application[1].launch.command: must not be empty",
        ),
        (
            'command = ["packer", "--fast"]',
            'command = "packer"',
            "application[1].launch.command: must be a list, not a text in quotes",
        ),
        (
            'command = ["packer", "--fast"]',
            "command = [7]",
            "launch.command: must be a text in quotes in each of its places, not a whole number",
        ),
        ('memory = "64MiB"', 'memory = "much"', "application[1].launch.memory: 'much' is"),
        ('name = "packer"', 'name = "../x"', "application[1].name: must be at most 64 letters"),
        ('grace = "2s"', 'grace = "soon"', "line 6: activator.grace: 'soon' is"),
        ('name = "ops"', 'name = "ops"\nid = "x"', "line 10: notification_service[1].id: "),
        ("[application.launch]", "[application.start]", "unknown key"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, was: str, becomes: str, words: str) -> None:
    assert was in GOOD
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, GOOD.replace(was, becomes)))
    assert words in caught.value.message
    assert "activator.toml" in caught.value.message


@pytest.mark.rule("ACT-40", "BI-C3")
def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("max = 4", "maxx = 4").replace('grace = "2s"', "grace = 2")
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text.replace('queue = "warehouse_q"', "")))
    what, *problems = caught.value.message.splitlines()
    assert what.endswith("activator.toml: the file is wrong")
    assert problems == [
        "line 6: activator.grace: must be a text in quotes, not a whole number",
        "line 15: application[1].trigger.queue: is missing",
        'line 25: application[1].instances.maxx: unknown key; did you mean "max"?',
    ]


@pytest.mark.rule("ACT-40")
def test_a_name_stands_once(tmp_path: Path) -> None:
    twice = GOOD + GOOD[GOOD.index("[[application]]") :]
    with pytest.raises(ConfigError, match="twice"):
        load(write(tmp_path, twice))
