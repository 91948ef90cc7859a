"""Names that would act where a program did not take them as they are (BI-R4)."""

import unicodedata
from pathlib import Path

import pytest

from brokerd.errors import BrokerError
from tests.integration.one_daemon import Daemon, play
from tests.integration.shorthand import take

NAMES = {
    "sql": "x'; DROP TABLE queues; --",
    "path": "../../etc/passwd",
    "html": "<script>alert(1)</script>",
    "nul": "a\x00b",
    "control": "a\x1b[31m\r\nb",
    "right to left": "\u202egnp.exe",
    "composed": unicodedata.normalize("NFC", "zu\u0308rich"),
    "decomposed": unicodedata.normalize("NFD", "z\u00fcrich"),
    "128 characters": "\u00fc" * 128,
}


@pytest.mark.rule("BI-R4", "OBJ-6", "OBJ-7", "OBJ-8", "OBJ-9")
def test_a_name_is_taken_as_it_is_or_refused(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handles = {}
        for kind, name in NAMES.items():
            queue = f"q{name}"[:128]
            await session.create("message_type", name)
            await session.create("contract", name, types={name: "any"})
            await session.create("queue", queue)
            await session.create("service", name, queue=queue, contracts=[name])
            handles[kind] = await session.begin_dialog(name, name, name)
            await session.send(handles[kind], kind.encode(), name)
        await session.close()
        await daemon.restart()
        session = await daemon.session()
        queues = {row["name"] for row in await session.view("service_queues")}
        services = {row["far_service"] for row in await session.view("conversation_endpoints")}
        assert services == set(NAMES.values())
        for kind, name in NAMES.items():
            assert f"q{name}"[:128] in queues
            (got,) = await take(session, f"q{name}"[:128])
            assert (got.message_type, got.body) == (name, kind.encode())
        await session.close()

    play(program, tmp_path)
    assert {one.name for one in tmp_path.glob("*.db")} <= {"main.db", "msdb.db"}


@pytest.mark.rule("BI-R4", "OBJ-8")
@pytest.mark.parametrize(
    ("name", "code"),
    [("", "invalid_name"), ("x" * 257, "invalid_name"), ("\ud800", "invalid_argument")],
    ids=["empty", "257 characters", "lone surrogate"],
)
def test_a_name_that_is_too_long_empty_or_no_text_is_refused(
    tmp_path: Path, name: str, code: str
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        for own in (name, name[:129]):  # a service of somebody else may have 256
            for kind, more in (("message_type", {}), ("queue", {}), ("service", {"queue": "desk"})):
                with pytest.raises(BrokerError) as caught:
                    await session.create(kind, own, **more)
                assert caught.value.code == code
        with pytest.raises(BrokerError) as caught:
            await session.begin_dialog("urn:desk", name, "talk")
        assert caught.value.code == code
        await session.begin_dialog("urn:desk", "x" * 256, "talk")
        await session.close()

    play(program, tmp_path)
