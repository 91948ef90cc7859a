"""The page of the event log and of event notifications."""

from brokerd.objects import event_names
from brokerd.telemetry.log_events import EVENTS
from tools.reference.markdown import code, codes, page, prose, sentence, table

FILE = "events.md"
_INTRODUCTION = """
The event log has a line for each thing that an operator may want to know. With
`log.format = "json"` each is one JSON object with `time`, `severity`, `event`, `instance`,
`instance_id`, `boot_id` and, where they apply, `subclass`, `broker`, `ssb_event_id` and fields of
its own. No line contains the body of a message. Identical events within `log.summary` become one
line with the field `repeated`.

What happens once for each message is written at level debug only; counters have it always.
"""
_NOTIFICATIONS = """
## Event notifications

A service can be notified of these events in messages: `brokerd event create NAME EVENT... --service
SERVICE`, or `[[event_notification]]` in a file of objects.
"""


def render() -> str:
    """Return the page."""
    parts = []
    for name, event in EVENTS.items():
        parts += [f"## {name}", sentence(event.meaning)]
        if event.ssb_id is not None:
            parts[-1] += f" Its number in Service Broker is {event.ssb_id}."
        if event.subclasses:
            rows = [(code(one), prose(when)) for one, when in event.subclasses.items()]
            parts.append(table(("Subclass", "Written when"), rows))
    meanings = [(code(name), sentence(text)) for name, text in event_names.MEANINGS.items()]
    groups = [(code(name), codes(sorted(events))) for name, events in event_names.GROUPS.items()]
    return page(
        "Events",
        _INTRODUCTION,
        *parts,
        _NOTIFICATIONS.strip(),
        table(("Event", "Meaning"), meanings),
        "### Groups of events",
        "A name that stands for several events.",
        table(("Group", "Events"), groups),
    )
