"""Which listeners other machines can reach, and that only a setting permits one (SX-21)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.config.exposure import beyond_this_machine, is_local_address
from brokerd.config.loading import altered_endpoint, load
from brokerd.config.settings import Authentication, Encryption, Endpoint
from brokerd.errors import ConfigError, InvalidArgument

Write = Callable[[str], Path]

LOCAL = [
    "unix:/run/brokerd.sock",
    "TCP://127.0.0.1:4023",
    "tcp://127.9.8.7:4023",
    "TCP://[::1]:4023",
    "TCP://localhost:4023",
    "TCP://LocalHost:0",
]
BEYOND = [
    "TCP://0.0.0.0:4023",
    "tcp://0.0.0.0:0",
    "TCP://[::]:4023",
    "TCP://192.0.2.1:4023",
    "TCP://[2001:db8::1]:4023",
    "TCP://10.0.0.1:4023",
    "TCP://169.254.1.1:4023",
    "TCP://[::ffff:192.0.2.1]:4023",
    "TCP://localhost.example.net:4023",
    "TCP://nowhere.invalid:4023",
]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str) -> Path:
        path = tmp_path / "b.toml"
        path.write_text(text)
        return path

    return make


@pytest.mark.rule("SX-21")
@pytest.mark.parametrize("address", LOCAL)
def test_a_client_listener_on_this_machine_needs_no_permission(address: str, write: Write) -> None:
    settings = load(write(f'[clients]\nlisten = "{address}"\n'), environ={}).settings
    assert settings.open_listeners(()) == ()


@pytest.mark.rule("SX-21")
@pytest.mark.parametrize("address", BEYOND)
def test_a_client_listener_beyond_this_machine_is_encrypted_or_permitted(
    address: str, write: Write
) -> None:
    assert not is_local_address(address)
    path = write(f'[clients]\nlisten = "{address}"\n')
    assert load(path, environ={}).settings.open_listeners(()) == ()
    permitted = load(path, environ={"BROKERD_CLIENTS__TRUST_NETWORK": "true"}).settings
    (door,) = permitted.open_listeners(())
    assert (door.who, door.address) == ("clients", address)
    assert door.permitted_by == "clients.trust_network"


@pytest.mark.rule("SX-25")
@pytest.mark.parametrize("address", BEYOND)
def test_an_http_listener_beyond_this_machine_is_encrypted_and_named(
    address: str, write: Write
) -> None:
    path = write(f'[http]\nlisten = "{address}"\n')
    with pytest.raises(ConfigError, match=r"http\.listen: .* set http\.tls = true"):
        load(path, environ={})
    (door,) = load(path, environ={"BROKERD_HTTP__TLS": "true"}).settings.open_listeners(())
    assert (door.who, door.address, door.permitted_by) == ("http", address, "http.tls")
    off = load(path, environ={"BROKERD_HTTP__ENABLED": "false"}).settings
    assert off.open_listeners(()) == ()
    assert off.http_address == ""


@pytest.mark.rule("SX-25", "MON-23")
@pytest.mark.parametrize("address", LOCAL)
def test_an_http_listener_on_this_machine_is_not_named(address: str, write: Write) -> None:
    settings = load(write(f'[http]\nlisten = "{address}"\n'), environ={}).settings
    assert settings.http_address == address
    assert settings.open_listeners(()) == ()


@pytest.mark.rule("SX-25")
def test_a_unix_socket_is_not_encrypted(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"http\.tls: a Unix socket is not encrypted"):
        load(write("[http]\ntls = true\n"), environ={})


@pytest.mark.rule("MON-23")
def test_the_http_listener_is_a_socket_beside_the_stores_by_default(write: Write) -> None:
    settings = load(write('[instance]\ndata_dir = "d"\n'), environ={}).settings
    assert settings.http_address == f"unix:{settings.instance.data_dir}/http.sock"
    far = "d" * 60 + "/" + "e" * 60
    text = f'[instance]\ndata_dir = "{far}"\n[clients]\nlisten = "TCP://127.0.0.1:1"\n'
    assert load(write(text), environ={}).settings.http_address == ""
    with pytest.raises(ConfigError, match=r"http\.listen: the socket path has"):
        load(write(f'{text}[http]\nlisten = "unix:{far}/s"\n'), environ={})


@pytest.mark.rule("SX-21", "CLP-130")
def test_the_risk_depends_on_grants() -> None:
    address = "TCP://0.0.0.0:1"
    (free,) = beyond_this_machine((address,), (), has_grants=False)
    assert "do everything, running programs included" in free.risk
    (bound,) = beyond_this_machine((address,), (), has_grants=True)
    assert "what clients.grants gives to public" in bound.risk


@pytest.mark.rule("SX-21", "SEC-10")
def test_a_listener_for_peers_is_known_by_its_address() -> None:
    addresses = ("TCP://127.0.0.1:1", "TCP://all:1", "TCP://192.0.2.1:1")
    found = beyond_this_machine(("unix:/s",), addresses, has_grants=False)
    assert [one.address for one in found] == list(addresses[1:])
    assert {(one.who, one.permitted_by) for one in found} == {
        ("peers", "transport.allow_plaintext")
    }


@pytest.mark.rule("SX-21", "SEC-10", "END-6")
@pytest.mark.parametrize(
    "said",
    [
        {"listen": "all"},
        {"listen": "0.0.0.0"},
        {"listen": ["127.0.0.1", "::"]},
        {"listen": "::ffff:192.0.2.1"},
        {"listen": "all", "state": "stopped"},
        {"listen": "all", "allow_plaintext": True},
        {"listen": "all", "trust_network": True},
    ],
)
def test_an_altered_endpoint_does_not_grant_itself_permission(said: dict[str, object]) -> None:
    endpoint = Endpoint(
        listen=("127.0.0.1",),
        encryption=Encryption.DISABLED,
        authentication=Authentication.NONE,
    )
    with pytest.raises(InvalidArgument, match=r"listen: unencrypted connections"):
        altered_endpoint(endpoint, said, allow_plaintext=False)


PLAIN = 'encryption = "disabled"\nauthentication = "none"\n'


@pytest.mark.rule("SEC-88")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[instance]\nname = "a"\n', []),
        ('[endpoint]\nlisten = "all"\n', []),
        ('[clients]\nlisten = "TCP://0.0.0.0:1"\n', []),
        (f'[endpoint]\nlisten = "127.0.0.1"\n{PLAIN}', ["may pass for any peer"]),
        (
            '[endpoint]\nencryption = "supported"\nauthentication = "certificate,public"\n',
            ["that do not encrypt are let in as public"],
        ),
        (
            '[endpoint]\nauthentication = "certificate,public"\n',
            ["without a certificate are let in as public"],
        ),
        ("[transport]\nallow_plaintext = true\n", ["transport.allow_plaintext admits"]),
        (
            f'[endpoint]\nlisten = "all"\n{PLAIN}[transport]\nallow_plaintext = true\n',
            [],  # it is among the open listeners
        ),
        ("[clients]\ntrust_network = true\n", ["clients.trust_network admits"]),
        (
            '[clients]\nlisten = ["unix:s", "TCP://127.0.0.1:1"]\n',
            ["every user of this machine may do everything"],
        ),
        (
            '[clients]\nlisten = "TCP://[::1]:1"\ngrants = ["send on a to public"]\n',
            ["every user of this machine may do what is granted to public"],
        ),
        ("[daemon]\ncore_dumps = true\n", ["daemon.core_dumps"]),
        ('[http]\nlisten = "TCP://127.0.0.1:1"\n', ["every user of this machine may read figures"]),
        ('[http]\nlisten = "TCP://127.0.0.1:1"\ntls = true\n', []),
    ],
)
def test_everything_else_that_settings_open_has_a_sentence(
    text: str, said: list[str], write: Write
) -> None:
    settings = load(write(text), environ={}).settings
    found = settings.openings(settings.peer_addresses)
    assert len(found) == len(said)
    for sentence, part in zip(found, said, strict=True):
        assert part in sentence
