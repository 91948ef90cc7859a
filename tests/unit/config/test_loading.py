"""Configuration: what is read, what wins, and how every problem is told (BI-C1 to BI-C3)."""

import re
import tomllib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from brokerd.config.loading import Settings, altered_endpoint, effective, load, sections
from brokerd.config.settings import Authentication, Encryption, Endpoint, EndpointState
from brokerd.errors import ConfigError, InvalidArgument
from brokerd.objects.declarations import parse
from brokerd.process.exit_statuses import exit_status
from brokerd.protocol.backoff import SuppressMode
from brokerd.resources import config_dir
from brokerd.units import parse_duration, parse_size, show_duration, show_size

Write = Callable[[str], Path]

PLAIN_ENDPOINT = """
[endpoint]
listen = "127.0.0.1"
encryption = "disabled"
authentication = "none"
"""
LOOPBACK = Endpoint(
    listen=("127.0.0.1",),
    encryption=Encryption.DISABLED,
    authentication=Authentication.NONE,
)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str) -> Path:
        path = tmp_path / "brokerd.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return make


def refused(path: Path, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path, environ=environ)
    return caught.value


# What is in effect.


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("clock.tick", '"5s"'),
        ("clock.fast_every", "2"),
        ("clock.slow_every", "5"),
        ("transport.connect_timeout", '"10s"'),
        ("transport.login_timeout", '"10s"'),
        ("transport.max_peers", "256"),
        ("transport.max_per_address", "64"),
        ("transport.max_logins", "64"),
        ("transport.max_logins_per_address", "16"),
        ("clients.max_clients", "1000"),
        ("clients.max_per_address", "64"),
        ("clients.max_logins", "64"),
        ("clients.max_logins_per_address", "16"),
        ("clients.login_timeout", '"10s"'),
        ("transport.suppress_after_goodbye", "false"),
        ("transport.suppress_mode", '"flat"'),
        ("transport.connect_spread", '"2s"'),
        ("transport.destination_memory", '"4MiB"'),
        ("transport.starvation", '"10s"'),
        ("transport.suppress_lost", '"15s"'),
        ("transport.suppress_failed", '"1min"'),
        ("transport.idle_close", '"90s"'),
        ("transport.ping_after", '"20s"'),
        ("transport.ping_timeout", '"10s"'),
        ("transport.arbitration_ping", '"5s"'),
        ("transport.boxcar_bytes", '"128KiB"'),
        ("transport.boxcar_fragments", "512"),
        ("transport.max_frame", '"1MiB"'),
        ("transport.send_mark", '"256KiB"'),
        ("dialog.fragment_size", '"32KiB"'),
        ("dialog.max_message", '"16MiB"'),
        ("dialog.check_aside", '"16KiB"'),
        ("checks.time", '"1s"'),
        ("checks.memory", '"256MiB"'),
        ("dialog.ack_delay", '"200ms"'),
        ("dialog.ack_every", "32"),
        ("dialog.retry_first", '"4s"'),
        ("dialog.retry_max", '"64s"'),
        ("dialog.window_fragments", "256"),
        ("dialog.window_bytes", '"4MiB"'),
        ("dialog.replay_guard", '"30min"'),
        ("dialog.default_lifetime", '"365d"'),
        ("dialog.idle_after", '"90d"'),
        ("dialog.idle_notice", '"30d"'),
        ("dialog.hops", "10"),
        ("dialog.time_to_live", '"1min"'),
        ("dialog.ack_on_arrival_path", "true"),
        ("dialog.strict_error_origin", "false"),
        ("routing.balance", '"round_robin"'),
        ("routing.prefer_online", "false"),
        ("transmitter.max_objects", "20000"),
        ("transmitter.cache_age", '"5min"'),
        ("transmitter.cache_size", "10000"),
        ("transmitter.error_pause", '"5s"'),
        ("store.min_free", '"256MiB"'),
        ("store.reserve", '"32MiB"'),
        ("store.slow_after", '"5s"'),
        ("daemon.drain", '"10s"'),
        ("daemon.loop_blocked", '"1s"'),
        ("bcn.most_open", "100"),
        ("bcn.failures", "3"),
        ("bcn.exempt_local", "false"),
        ("bcn.format", '"xml"'),
        ("dispatcher.stale", '"10s"'),
        ("dispatcher.mem_low", '"32MiB"'),
        ("dispatcher.mem_high", '"64MiB"'),
        ("dispatcher.mem_hard", '"96MiB"'),
        ("dispatcher.mem_dialog", '"8MiB"'),
        ("dispatcher.max_openings", "1000"),
        ("dispatcher.batch", "256"),
        ("dispatcher.store_retries", "3"),
        ("dispatcher.notices", "true"),
        ("dispatcher.notice_interval", '"10s"'),
        ("forwarder.max_age", '"1min"'),
        ("bcn.lifetime", '"5min"'),
        ("log.summary", '"1min"'),
    ],
)
@pytest.mark.rule(
    "CLK-1", "TRN-9", "TRN-15", "TRN-16", "TRN-28", "DLP-19", "DLP-26", "DLP-31", "DLG-10", "SND-12"
)
def test_the_defaults_are_the_figures_of_the_numbers_table(key: str, text: str) -> None:
    assert (key, text, "default") in effective(load(None, environ={}))


@pytest.mark.rule("END-1", "END-4")
def test_there_is_no_endpoint_unless_the_file_has_the_section(write: Write) -> None:
    assert load(None, environ={}).settings.endpoint is None
    declared = load(write(PLAIN_ENDPOINT), environ={}).settings.endpoint
    assert declared is not None
    assert declared.state == "started"
    wanted = (4022, timedelta(seconds=5), False, 10)
    assert (declared.port, declared.drain, declared.forwarding, declared.forward_size_mb) == wanted


@pytest.mark.rule("END-3", "END-10", "END-11")
def test_an_endpoint_of_which_nothing_is_said_would_listen_everywhere_with_certificates() -> None:
    plain = Endpoint()
    assert plain.listen == ("all",)
    assert plain.encryption is Encryption.REQUIRED
    assert plain.authentication is Authentication.CERTIFICATE


@pytest.mark.rule("END-2", "END-3")
def test_an_endpoint_listens_at_each_address_with_the_port(write: Write) -> None:
    text = PLAIN_ENDPOINT.replace('"127.0.0.1"', '["127.0.0.1", "::1"]') + "port = 0"
    settings = load(write(text), environ={}).settings
    assert settings.peer_addresses == ("TCP://127.0.0.1:0", "TCP://[::1]:0")


def test_relative_paths_are_relative_to_the_file(write: Write, tmp_path: Path) -> None:
    text = '[instance]\ndata_dir = "../d"\n[clients]\nlisten = "unix:s.sock"\n[log]\nfile = "l"'
    settings = load(write(text), environ={}).settings
    assert settings.instance.data_dir == tmp_path.parent / "d"
    assert settings.client_address == f"unix:{tmp_path / 's.sock'}"
    assert settings.log.file == tmp_path / "l"
    assert settings.metrics_dir == tmp_path.parent / "d" / "metrics"


def test_clients_find_the_socket_in_the_data_directory_by_default(write: Write) -> None:
    settings = load(write('[instance]\ndata_dir = "d"'), environ={}).settings
    assert settings.client_address == f"unix:{settings.instance.data_dir}/brokerd.sock"


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("BROKERD_TRANSPORT__IDLE_CLOSE", "30s", "transport.idle_close", '"30s"'),
        ("BROKERD_DIALOG__ACK_EVERY", "7", "dialog.ack_every", "7"),
        ("BROKERD_TRANSPORT__ALLOW_PLAINTEXT", "true", "transport.allow_plaintext", "true"),
        ("BROKERD_INSTANCE__NAME", "7", "instance.name", '"7"'),
        ("BROKERD_LOG__LEVEL", "DEBUG", "log.level", '"debug"'),
        ("BROKERD_DIALOG__MAX_MESSAGE", "1MiB", "dialog.max_message", '"1MiB"'),
    ],
)
def test_the_environment_wins_and_is_named_as_the_origin(
    write: Write, name: str, text: str, key: str, value: str
) -> None:
    path = write('[instance]\nname = "x"\n[log]\nlevel = "error"\n[dialog]\nack_every = 3')
    assert (key, value, f"environment {name}") in effective(load(path, environ={name: text}))


def test_the_origin_of_a_value_in_the_file_is_its_line(write: Write) -> None:
    path = write('# first\n[instance]\nname = "x"\n')
    assert ("instance.name", '"x"', f"{path}:3") in effective(load(path, environ={}))


def test_other_variables_are_none_of_its_business() -> None:
    assert (
        load(None, environ={"BROKERD_CONFIG": "x", "PATH": "y"}).settings
        == load(None, environ={}).settings
    )


# What is refused.


@pytest.mark.rule("BI-C1")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (b"\xef\xbb\xbf[instance]\n", "byte order mark"),
        (b"[instance]\nname = '\xff'\n", "line 2 is not UTF-8"),
        (b"#" * (1024 * 1024 + 1), "larger than"),
    ],
)
def test_a_file_that_is_no_text_is_refused_in_one_line(
    tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    error = refused(path)
    assert exit_status(error) == 78
    assert why in error.message
    assert str(path) in error.message
    assert "\n" not in error.message


@pytest.mark.rule("BI-C1")
def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    assert "directory" in refused(tmp_path).message
    assert "No such file" in refused(tmp_path / "none.toml").message


@pytest.mark.rule("BI-C2")
@pytest.mark.parametrize(
    ("text", "place", "line", "caret"),
    [
        ("[instance]\nname = = 3\n", "2:8", "    2 | name = = 3", "      |        ^"),
        ("[instance]\nname = 'x\n", "2:10", "    2 | name = 'x", "      |          ^"),
        ("\tx y = 1", "1:4", "    1 |     x y = 1", "      |       ^"),
    ],
)
def test_a_toml_error_shows_the_line_and_a_caret(
    write: Write, text: str, place: str, line: str, caret: str
) -> None:
    path = write(text)
    first, *rest = refused(path).message.splitlines()
    assert first.startswith(f"{path}:{place}: not TOML: ")
    assert rest == [line, caret]


@pytest.mark.rule("BI-C2")
def test_the_end_of_the_file_is_a_place_too(write: Write) -> None:
    path = write("[instance")
    assert refused(path).message.splitlines()[1:] == ["    1 | [instance", "      |          ^"]


@pytest.mark.rule("BI-C3")
def test_every_problem_is_told_at_once_with_line_and_key(write: Write) -> None:
    path = write(
        "[transport]\n"
        'idle_clos = "30s"\n'
        'ping_after = "soon"\n'
        "boxcar_fragments = 0\n"
        "[dialogue]\n"
        "[dialog]\n"
        'fragment_size = "32"\n'
        "[log]\n"
        'level = "inof"\n'
    )
    error = refused(path)
    what, *lines = error.message.splitlines()
    assert str(path) in what
    assert lines == [
        'line 2: transport.idle_clos: unknown key; did you mean "idle_close"?',
        'line 3: transport.ping_after: \'soon\' is not of the form "15s", "200ms" or "30min"',
        "line 4: transport.boxcar_fragments: 0 is outside 1 to 1024",
        'line 5: dialogue: unknown key; did you mean "dialog"?',
        'line 7: dialog.fragment_size: \'32\' lacks its unit; write "64KiB" or "4MiB"',
        "line 9: log.level: 'inof' is none of debug, info, warning, error; did you mean \"info\"?",
    ]


@pytest.mark.rule("BI-C3")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("instance = 3", "is a section"),
        ("[instance]\nname = 3", "3 is not text"),
        ('[instance]\nname = "a/b"', "letters, digits"),
        ("[dialog]\nack_every = true", "True is not a whole number"),
        ("[dialog]\nack_every = 1.5", "1.5 is not a whole number"),
        ("[dialog]\nretry_first = true", "neither text"),
        ("[dialog]\nretry_first = nan", "beyond"),
        ('[dialog]\nretry_first = "5 parsecs"', "'parsecs' is no unit"),
        ('[dialog]\nfragment_size = "1GiB"', "outside 256B to 512KiB"),
        ('[clients]\nlisten = "http://x"', "neither unix:PATH"),
        ('[clients]\nlisten = "unix:"', "path is missing"),
        ('[clients]\ngrants = ["receive on desk to ann"]', "of which broker"),
        (f'[clients]\nlisten = "unix:/{"x" * 200}"', "the system takes 107"),
        ('[dispatcher]\nmem_low = "65MiB"', "must not be above dispatcher.mem_high"),
        ('[dialog]\nretry_first = "65s"', "must not be above dialog.retry_max"),
        (PLAIN_ENDPOINT + "port = 65536", "outside 0 to 65535"),
        (PLAIN_ENDPOINT.replace("127.0.0.1", "localhost"), "neither all nor an IP address"),
        (PLAIN_ENDPOINT.replace('"127.0.0.1"', '["all", "::1"]'), "stands alone"),
        ("[endpoint]\nlisten = []", "is not text or a list of texts"),
    ],
)
def test_values_that_cannot_be_are_refused(write: Write, text: str, problem: str) -> None:
    assert problem in refused(write(text)).message


WRONG_ANYWHERE = [
    "{}", "[[]]", "[{}]", "[1]", "-1", "nan", "inf", "1979-05-27", '"a\\u0000b"', '[""]',
]  # fmt: skip
"""Values that no key may have."""
EVERY_KEY = [
    f"{section}.{key}" for section, kind in sections().items() for key in kind.__struct_fields__
]
MAY_BE_EMPTY = {
    *("ca.certificate", "ca.clients", "ca.crl_file", "ca.file", "ca.key", "ca.peers"),
    *("clients.listen", "http.listen", "log.file", "log.metrics_dir", "mirroring.directory"),
    *("store.schema_prefix", "store.url"),
}
"""Empty text is their default."""


def with_key(path: str, value: str) -> str:
    section, key = path.split(".")
    lines = PLAIN_ENDPOINT.splitlines()[2:] if section == "endpoint" else []
    kept = [line for line in lines if not line.startswith(f"{key} ")]
    return "\n".join([f"[{section}]", *kept, f"{key} = {value}"])


@pytest.mark.rule("BI-C3")
@pytest.mark.parametrize("path", EVERY_KEY)
def test_a_wrong_value_of_any_key_is_refused_by_its_name(write: Write, path: str) -> None:
    for value in WRONG_ANYWHERE if path in MAY_BE_EMPTY else [*WRONG_ANYWHERE, '""']:
        error = refused(write(with_key(path, value)))
        assert exit_status(error) == 78
        assert f"{path}: " in error.message, value


@pytest.mark.rule("BI-C3")
@pytest.mark.parametrize("path", sorted(MAY_BE_EMPTY))
def test_empty_text_is_the_default_of_a_few_keys(write: Write, path: str) -> None:
    loaded = load(write(with_key(path, '""')), environ={})
    shown = {key: text for key, text, _ in effective(loaded)}
    assert shown[path] in ('""', "[]")


@pytest.mark.rule("BI-C3")
def test_problems_in_the_environment_name_the_variable() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, environ={"BROKERD_DIALOGS__HOPS": "1", "BROKERD_DIALOG__HOPS": "999"})
    assert caught.value.message.splitlines()[1:] == [
        'BROKERD_DIALOGS__HOPS: no section "dialogs"; did you mean "dialog"?',
        "dialog.hops: 999 is outside 1 to 255 (environment BROKERD_DIALOG__HOPS)",
    ]


@pytest.mark.rule("SEC-10", "END-10")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[endpoint]\nauthentication = "none"', 'is for encryption = "disabled" only'),
        (PLAIN_ENDPOINT.replace('"none"', '"certificate"'), 'must be "none"'),
        (PLAIN_ENDPOINT.replace("127.0.0.1", "0.0.0.0"), "loopback only"),
        (PLAIN_ENDPOINT.replace("127.0.0.1", "all"), "loopback only"),
        (PLAIN_ENDPOINT.replace('"127.0.0.1"', '["::1", "192.0.2.1"]'), "loopback only"),
    ],
)
def test_unencrypted_connections_stay_on_loopback(write: Write, text: str, problem: str) -> None:
    assert problem in refused(write(text)).message


@pytest.mark.rule("END-2", "END-3", "END-6", "END-10", "END-11")
@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"encryption": "required"}, '"none" is for encryption = "disabled" only'),
        (
            {"encryption": "supported", "authentication": "certificate"},
            '"supported" admits unencrypted peers',
        ),
        ({"authentication": "certificate"}, '"certificate" must be "none"'),
        ({"authentication": "certificate,public"}, '"certificate,public" must be "none"'),
        ({"authentication": "kerberos"}, "is none of certificate, certificate,public, none"),
        ({"listen": "here"}, "neither all nor an IP address"),
        ({"listen": ["::1", "0:0:0:0:0:0:0:1"]}, "there twice"),
        ({"listen": ["all", "::1"]}, '"all" stands alone'),
        ({"listen": "192.0.2.1"}, "loopback only"),
        ({"port": 70_000}, "outside 0 to 65535"),
        ({"state": "up"}, "is none of started, stopped, disabled"),
        ({"drian": 5}, 'drain"?'),
    ],
)
def test_an_endpoint_cannot_be_altered_to_what_may_not_be(
    said: dict[str, object], problem: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        altered_endpoint(LOOPBACK, said, allow_plaintext=False)
    assert problem in refused.value.message


@pytest.mark.rule("END-6", "END-9")
def test_what_is_not_said_of_an_endpoint_stays() -> None:
    said = {"listen": "::1", "port": 0, "drain": "2s", "state": "Disabled", "forwarding": True}
    changed = altered_endpoint(LOOPBACK, said, allow_plaintext=False)
    assert changed.addresses == ("TCP://[::1]:0",)
    assert (changed.drain, changed.forwarding) == (timedelta(seconds=2), True)
    assert changed.forward_size_mb == LOOPBACK.forward_size_mb
    assert changed.state is EndpointState.DISABLED


@pytest.mark.rule("SEC-10")
def test_plain_text_elsewhere_has_to_be_allowed(write: Write) -> None:
    text = PLAIN_ENDPOINT.replace("127.0.0.1", "all") + "[transport]\nallow_plaintext = true"
    addresses = load(write(text), environ={}).settings.peer_addresses
    assert addresses == ("TCP://all:4022",)


# Units.


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("15s", 15), ("200ms", 0.2), ("30min", 1800), ("1.5h", 5400), (3, 3), (0.25, 0.25), ("0s", 0)],
)
def test_durations(written: object, seconds: float) -> None:
    wait = parse_duration(written)
    assert wait == timedelta(seconds=seconds)
    assert parse_duration(show_duration(wait)) == wait


@pytest.mark.parametrize("written", ["", "s", "5", "1e9s", "-", "5 s s", None, [], float("inf")])
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_duration(written)


@pytest.mark.parametrize(
    ("written", "size"), [("64KiB", 65536), ("1.5MiB", 1572864), ("2MB", 2_000_000), (7, 7)]
)
def test_sizes(written: object, size: int) -> None:
    assert parse_size(written) == size
    assert parse_size(show_size(size)) == size


# Where clients connect.


@pytest.mark.rule("SEC-83")
@pytest.mark.parametrize(
    ("listen", "addresses", "local"),
    [
        ('"unix:s"', ["unix:{}/s"], 0),
        ('["unix:s", "TCP://0.0.0.0:7"]', ["unix:{}/s", "TCP://0.0.0.0:7"], 0),
        ('["TCP://0.0.0.0:7", "unix:s"]', ["TCP://0.0.0.0:7", "unix:{}/s"], 1),
        ('["TCP://127.0.0.1:7", "TCP://[::1]:7"]', ["TCP://127.0.0.1:7", "TCP://[::1]:7"], 0),
        ('""', ["unix:{}/data/brokerd.sock"], 0),
    ],
)
def test_clients_are_listened_for_at_several_addresses(
    write: Write, tmp_path: Path, listen: str, addresses: list[str], local: int
) -> None:
    settings = load(write(f"[clients]\nlisten = {listen}\n"), environ={}).settings
    assert list(settings.client_addresses) == [one.format(tmp_path) for one in addresses]
    assert settings.client_address == addresses[local].format(tmp_path)


@pytest.mark.rule("SEC-83")
@pytest.mark.parametrize(
    ("listen", "wrong"),
    [
        ('["unix:a", "unix:b"]', "there is one Unix socket"),
        ('["TCP://h:1", "TCP://h:1"]', "there twice"),
        ('["unix:a", "nowhere"]', "'nowhere' is neither"),
    ],
)
def test_wrong_addresses_of_a_list_are_named(write: Write, listen: str, wrong: str) -> None:
    assert wrong in refused(write(f"[clients]\nlisten = {listen}\n")).message


# The shipped examples.


OPENING = {
    *("clients.trust_network", "endpoint.authentication", "endpoint.encryption"),
    "transport.allow_plaintext",
}
"""Keys that admit others without proof; an example that lists them invites to use them."""


@pytest.mark.rule("SEC-81")
@pytest.mark.parametrize("name", ["east", "west"])
def test_the_examples_load_and_show_every_key_but_those_that_open_something(name: str) -> None:
    path = config_dir() / f"{name}.toml"
    loaded = load(path, environ={})
    assert loaded.settings.instance.name == name
    in_file = {key for key, _, origin in effective(loaded) if origin != "default"}
    assert in_file == {key for key, _, _ in effective(loaded)} - OPENING


@pytest.mark.rule("SEC-81")
@pytest.mark.parametrize("name", ["east", "middle", "west"])
def test_the_examples_encrypt_and_let_only_paired_instances_in(name: str) -> None:
    endpoint = load(config_dir() / f"{name}.toml", environ={}).settings.endpoint
    assert endpoint is not None
    assert endpoint.encryption is Encryption.REQUIRED
    assert endpoint.authentication is Authentication.CERTIFICATE
    assert parse(
        tomllib.loads((config_dir() / f"{name}.objects.toml").read_text())
    ).default_encryption
    for path in (config_dir() / f"{name}.toml", config_dir() / f"{name}.objects.toml"):
        words = set(re.split(r"[^a-z_.]+", path.read_text()))
        opening = {key.rpartition(".")[2] for key in OPENING}
        assert not words & (opening | {"default_encryption"})


def test_every_file_in_config_is_checked_by_some_test() -> None:
    names = {path.name for path in config_dir().iterdir()}
    instances = ("east", "west", "middle")
    served = {"routes.toml"}  # tests/integration/routing/test_route_service.py
    assert names == served | {f"{one}{kind}.toml" for one in instances for kind in ("", ".objects")}


@pytest.mark.rule("END-9")
def test_the_example_of_a_forwarder_forwards() -> None:
    settings = load(config_dir() / "middle.toml", environ={}).settings
    assert settings.instance.name == "middle"
    assert settings.endpoint is not None
    assert (settings.endpoint.forwarding, settings.endpoint.forward_size_mb) == (True, 10)
    assert settings.forwarder == Settings().forwarder
    declared = parse(tomllib.loads((config_dir() / "middle.objects.toml").read_text()))
    ways = {one.service_name: one.address for one in (declared.instance_routes or {}).values()}
    ends = {
        name: load(config_dir() / f"{name}.toml", environ={}).settings.endpoint
        for name in ("east", "west")
    }
    assert all(one is not None for one in ends.values())
    assert ways == {
        "shop": f"tcp://127.0.0.1:{ends['east'].port if ends['east'] else 0}",
        "warehouse": f"tcp://127.0.0.1:{ends['west'].port if ends['west'] else 0}",
        None: "LOCAL",
    }


@pytest.mark.parametrize("name", ["east", "west"])
def test_the_examples_differ_from_the_defaults_only_where_they_must(name: str) -> None:
    settings = load(config_dir() / f"{name}.toml", environ={}).settings
    plain = Settings()
    for section in ("clock", "dialog", "transmitter", "dispatcher", "store", "log"):
        assert getattr(settings, section) == getattr(plain, section)
    # Two that are started together do not wait a minute for each other (NBT-9).
    backoff = msgspec.structs.replace(plain.transport, suppress_mode=SuppressMode.BACKOFF)
    assert settings.transport == backoff


@pytest.mark.rule("RTE-55")
@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ('brokers = ["app"]', "mirroring.directory: give the directory"),
        ('brokers = ["app"]\ndirectory = "data"', "mirroring.directory: give the directory"),
        ('brokers = ["msdb"]\ndirectory = "shared"', "mirroring.brokers: msdb belongs to one"),
    ],
)
def test_brokers_are_shared_in_a_directory_of_their_own(
    tmp_path: Path, said: str, wrong: str
) -> None:
    path = tmp_path / "b.toml"
    path.write_text(f"[mirroring]\n{said}\n")
    with pytest.raises(ConfigError, match=wrong):
        load(path, environ={})


@pytest.mark.rule("RTE-55")
def test_a_shared_broker_has_its_file_with_the_partner(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text('[mirroring]\nbrokers = ["app"]\ndirectory = "shared"\n')
    settings = load(path, environ={}).settings
    assert settings.store_path("app") == tmp_path / "shared" / "app.db"
    assert settings.store_path("main") == tmp_path / "data" / "main.db"


@pytest.mark.rule("SEC-68")
def test_one_rule_cannot_name_peers_and_clients(write: Write) -> None:
    files = "".join(f'{one} = "/etc/brokerd/{one}"\n' for one in ("file", "certificate", "key"))
    rules = 'peers = "{name}.brokers.example"\nclients = "{name}.%s.example"\n'
    same = write(f"[ca]\n{files}{rules % 'BROKERS'}")
    assert "ca.clients" in str(refused(same))
    other = load(write(f"[ca]\n{files}{rules % 'clients'}"), environ={})
    assert other is not None
