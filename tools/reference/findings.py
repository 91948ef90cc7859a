"""The page of the findings of the doctor, and of the statuses of messages."""

from brokerd.admin.doctor.codes import CODES
from brokerd.routing.reasons import MEANING, SSB_CODES
from tools.reference.markdown import code, page, prose, sentence, table

FILE = "findings.md"
_INTRODUCTION = """
`brokerd doctor` names each fault by a code that never changes its meaning; the finding itself says
which object it is about, and gives the commands that help. `brokerd explain CODE` prints the same
as this page ([Find out what is wrong](../how-to/doctor.md)).
"""
_STATUSES = """
## Statuses of messages

Why a message waits, or was dropped: `status_key` in `brokerd transmission ls` and
`brokerd dialog status`, with the number that Service Broker has for it, if there is one.
"""


def render() -> str:
    """Return the page."""
    findings = [(code(name), prose(one.meaning), prose(one.cure)) for name, one in CODES.items()]
    statuses = [
        (code(str(key)), sentence(meaning), str(SSB_CODES.get(key, "")))
        for key, meaning in MEANING.items()
    ]
    return page(
        "Findings",
        _INTRODUCTION,
        table(("Code", "Meaning", "What to do"), findings),
        _STATUSES.strip(),
        table(("Status", "Meaning", "Number"), statuses),
    )
