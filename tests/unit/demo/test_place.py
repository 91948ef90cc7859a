"""The directory of a demo: made anew, never somebody else's, with usable configurations."""

from pathlib import Path
from random import Random

import pytest

from brokerd.config.loading import load
from brokerd.demo.place import DirectoryRefused, Place, with_value
from brokerd.objects.declarations import read


def place(directory: Path) -> Place:
    return Place(directory, rng=Random(1))


def test_both_configurations_can_be_loaded_and_have_ports_of_their_own(tmp_path: Path) -> None:
    with place(tmp_path / "demo") as made:
        east, west = made.sites["east"], made.sites["west"]
        settings = {site.name: load(site.settings, environ={}).settings for site in (east, west)}
        for site in (east, west):
            read(site.objects)
    assert settings["east"].client_address == east.address
    assert settings["west"].metrics_dir == made.metrics / "west"
    ports = {name: one.endpoint.port for name, one in settings.items() if one.endpoint}
    assert len(set(ports.values())) == 2


def test_it_is_made_anew_each_time(tmp_path: Path) -> None:
    with place(tmp_path / "demo") as made:
        (made.directory / "east").mkdir()
        (made.directory / "east" / "main.db").write_text("old")
    with place(tmp_path / "demo") as made:
        assert not (made.directory / "east").exists()


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_is_not_a_demos_is_left_alone(kind: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    if kind == "file":
        mine.write_text("important")
    else:
        mine.mkdir()
        (mine / "thesis.txt").write_text("important")
    with pytest.raises(DirectoryRefused):
        place(mine)
    kept = mine if kind == "file" else mine / "thesis.txt"
    assert kept.read_text() == "important"
    assert kind == "file" or list(mine.iterdir()) == [kept]


def test_a_directory_in_use_is_refused_until_it_is_let_go(tmp_path: Path) -> None:
    with place(tmp_path) as made:
        (made.directory / "east.log").write_text("in use")
        with pytest.raises(DirectoryRefused, match="another demo is running"):
            place(tmp_path)
        assert (made.directory / "east.log").exists()
    place(tmp_path).close()


def test_sockets_have_short_paths_wherever_the_directory_is(tmp_path: Path) -> None:
    with place(tmp_path / ("long" * 30)) as made:
        paths = [site.address.removeprefix("unix:") for site in made.sites.values()]
        assert max(map(len, paths)) < 104
        assert len(set(paths)) == 2
    assert not any(Path(path).parent.exists() for path in paths)


def test_one_value_is_replaced_and_nothing_else() -> None:
    text = '[a]\nport = 1  # one\n[b]  # second\nport = 2  # two\nname = "x" # n\n'
    assert with_value(text, "b", "port", 9) == text.replace("2  # two", "9  # two")
    assert with_value(text, "b", "name", "y") == text.replace('"x"', '"y"')
    with pytest.raises(ValueError, match=r"no a\.name"):
        with_value(text, "a", "name", "z")
