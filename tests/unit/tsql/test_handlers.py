"""Handlers that take the place of activation procedures."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.app.app import App
from brokerd.tsql.assessment import lines
from brokerd.tsql.handlers import module_name
from brokerd.tsql.translation import translate
from tests.unit.tsql.scripts import DATA, shop, translated


def imported(text: str) -> dict[str, Any]:
    """What a module defines."""
    found: dict[str, Any] = {"__name__": "imported"}
    exec(compile(text, "imported.py", "exec"), found)
    return found


@pytest.mark.rule("IMP-15")
def test_a_handler_has_the_queue_the_contracts_and_the_procedure() -> None:
    ((name, text),) = shop().handlers.items()
    assert name == "packing_queue_handler"
    found = imported(text)
    app = found["app"]
    assert isinstance(app, App)
    assert app.service == "//shop/Packing"
    assert app.queues == ("PackingQueue",)
    (contract,) = app.contracts
    assert contract.name == "//shop/Orders"
    assert contract.kinds == {"//shop/Order": bytes, "//shop/Packed": bytes, "//shop/Tick": None}
    app.handler_for("PackingQueue")
    assert "#     CREATE PROCEDURE dbo.PackOrders\n" in text


@pytest.mark.rule("IMP-15")
def test_each_call_stands_at_the_message_type_that_it_is_for() -> None:
    (text,) = shop().handlers.values()
    case = text[text.index('case "//shop/Order"') :].split("case")[1]
    assert 'line 21: await ctx.tx.send(ctx.dialog, body, message_type="//shop/Packed")' in case
    assert 'brokerd.Park("not ported yet: //shop/Order")' in case


@pytest.mark.rule("IMP-5", "IMP-15")
def test_the_guide_shows_what_the_import_writes() -> None:
    guide = (DATA.parents[2] / "docs" / "how-to" / "from-service-broker.md").read_text()
    scripts = [("setup.sql", "shop.sql"), ("procedures.sql", "procedures.sql")]
    made = translate([(path, (DATA / name).read_text()) for path, name in scripts])
    (said,) = re.findall(r"```text\n(.*?)```", guide, re.DOTALL)
    (shown,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (handler,) = made.handlers.values()
    for text, written in ((said, list(lines(made.assessment))), (shown, handler.splitlines())):
        places = [written.index(line) for line in text.splitlines() if line.strip() != "..."]
        assert places == sorted(places)


@pytest.mark.rule("IMP-15")
def test_an_initiator_knows_the_contracts_of_its_dialogs() -> None:
    text = (
        "CREATE MESSAGE TYPE a CREATE MESSAGE TYPE b CREATE QUEUE q WITH ACTIVATION ("
        "PROCEDURE_NAME = p) CREATE SERVICE s ON QUEUE q CREATE CONTRACT unused (a SENT BY ANY) "
        "CREATE CONTRACT c (a SENT BY INITIATOR, b SENT BY TARGET) "
        "BEGIN DIALOG @h FROM SERVICE s TO SERVICE 't' ON CONTRACT c"
    )
    (handler,) = translated(text).handlers.values()
    (contract,) = imported(handler)["app"].contracts
    assert contract.name == "c"
    assert 'case "b":' in handler
    assert 'case "a":' not in handler


@pytest.mark.rule("IMP-15")
def test_a_timer_gets_a_hook() -> None:
    text = (
        "CREATE QUEUE q WITH ACTIVATION (PROCEDURE_NAME = p)\nGO\nCREATE PROC p AS "
        "RECEIVE * FROM q; BEGIN CONVERSATION TIMER (@h) TIMEOUT = 60"
    )
    (handler,) = translated(text).handlers.values()
    assert "@app.on_timer" in handler
    imported(handler)


@pytest.mark.rule("IMP-22")
def test_no_password_is_in_a_handler() -> None:
    text = (
        "CREATE QUEUE q WITH ACTIVATION (PROCEDURE_NAME = p)\nGO\nCREATE PROC p AS\nOPEN "
        "SYMMETRIC KEY k DECRYPTION BY PASSWORD = N'it''s secret';\nRECEIVE * FROM q"
    )
    (handler,) = translated(text).handlers.values()
    assert "secret" not in handler
    assert "#     OPEN SYMMETRIC KEY k DECRYPTION BY PASSWORD = N'...';\n" in handler


@pytest.mark.rule("IMP-15")
def test_a_queue_without_service_or_procedure_gets_a_handler_that_runs() -> None:
    (handler,) = translated("CREATE QUEUE q WITH ACTIVATION (PROCEDURE_NAME = p)").handlers.values()
    imported(handler)["app"].handler_for("q")


@pytest.mark.rule("IMP-15")
def test_a_contract_that_no_dialog_can_have_is_left_out() -> None:
    text = (
        "CREATE QUEUE q WITH ACTIVATION (PROCEDURE_NAME = p) CREATE CONTRACT c (m SENT BY TARGET) "
        "CREATE SERVICE s ON QUEUE q (c)"
    )
    (handler,) = translated(text).handlers.values()
    assert [one.name for one in imported(handler)["app"].contracts] == ["DEFAULT"]


@pytest.mark.rule("IMP-16")
@given(st.text())
def test_text_of_a_script_stays_a_comment_or_a_string(text: str) -> None:
    name = text.replace("]", "]]")
    made = translated(
        f"CREATE MESSAGE TYPE [{name}] CREATE CONTRACT [{name}] ([{name}] SENT BY ANY) CREATE "
        f"QUEUE q WITH ACTIVATION (PROCEDURE_NAME = [{name}])\nCREATE SERVICE [{name}] ON QUEUE q "
        f"([{name}])\nGO\nCREATE PROC [{name}] AS SEND ON CONVERSATION @h MESSAGE TYPE [{name}] (1)"
        f"\n-- {text}"
    )
    for handler in made.handlers.values():
        found = imported(handler)
        names = {"CONTRACT_0", "app", "brokerd", "due", "ended", "failed", "handle"}
        assert found.keys() - {"__name__", "__builtins__", "__doc__", "__annotations__"} <= names


@pytest.mark.rule("IMP-15")
def test_the_name_of_a_module_is_no_module_of_python() -> None:
    taken: set[str] = set()
    names = ["queue", "Queue", "AsyncIO", "dbo.PackingQueue", "7days", "é", "", "x" * 300]
    found = [module_name(name, taken) for name in names]
    assert found[:5] == [
        "queue_handler",
        "queue_2_handler",
        "async_io_handler",
        "dbo_packing_queue_handler",
        "q_7days_handler",
    ]
    assert len(set(found)) == len(found)
    assert all(name.isidentifier() and len(name) < 120 for name in found)
