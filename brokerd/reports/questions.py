"""Ready questions about the lake of the nightly report, as SQL for `brokerd report query`.

Never:  reads anything. An instant of the lake is a number of microseconds, and is shown as a time;
        a value of a histogram is the middle of its bucket.
"""

from typing import Final, NamedTuple


class Question(NamedTuple):
    """A question with a name. `needs`: the parameters of its SQL, each with an example."""

    name: str
    about: str
    sql: str
    needs: dict[str, str] = {}  # noqa: RUF012  # never changed


QUESTIONS: Final = {
    one.name: one
    for one in (
        Question(
            "busiest-queues",
            "Which queues received the most messages?",
            """
            SELECT instance, broker, name AS queue, sum(total) AS received,
                count(DISTINCT hour_at) AS hours
            FROM counters WHERE scope = 'queue' AND counter = 'received'
            GROUP BY ALL ORDER BY received DESC, 1, 2, 3 LIMIT 20
            """,
        ),
        Question(
            "slowest-queues",
            "In which queues did messages wait longest?",
            """
            WITH merged AS (
                SELECT instance, broker, name AS queue, bucket, sum(count) AS count
                FROM histograms WHERE measure = 'wait_us' AND span = 'all' GROUP BY ALL
            ), ranked AS (
                SELECT *, pow(1.02, bucket + 0.5) / 1000 AS ms,
                    100 * sum(count) OVER (of_queue ORDER BY bucket) / sum(count) OVER of_queue
                        AS percent
                FROM merged WINDOW of_queue AS (PARTITION BY instance, broker, queue)
            )
            SELECT instance, broker, queue, sum(count) AS messages,
                round(min(ms) FILTER (percent >= 50), 1) AS p50_ms,
                round(min(ms) FILTER (percent >= 95), 1) AS p95_ms,
                round(min(ms) FILTER (percent >= 99), 1) AS p99_ms
            FROM ranked GROUP BY ALL ORDER BY p95_ms DESC, 1, 2, 3 LIMIT 20
            """,
        ),
        Question(
            "slowest-hours",
            "In which hours did messages of a queue wait longest?",
            """
            WITH ranked AS (
                SELECT span_at, instance, broker, name AS queue, count,
                    pow(1.02, bucket + 0.5) / 1000 AS ms,
                    100 * sum(count) OVER (of_hour ORDER BY bucket) / sum(count) OVER of_hour
                        AS percent
                FROM histograms WHERE measure = 'wait_us' AND span = 'hour'
                WINDOW of_hour AS (PARTITION BY span_at, instance, broker, name)
            )
            SELECT make_timestamp(span_at) AS hour, instance, broker, queue,
                sum(count) AS messages, round(min(ms) FILTER (percent >= 95), 1) AS p95_ms
            FROM ranked GROUP BY ALL ORDER BY p95_ms DESC, 1, 2, 3, 4 LIMIT 20
            """,
        ),
        Question(
            "failures",
            "What failed most often, and since when?",
            """
            SELECT event, subclass, fingerprint, sum(times) AS times,
                count(DISTINCT date) AS days, make_timestamp(min(first_at)) AS first_at,
                arg_min(example, first_at) AS example,
                arg_min(conversation_id, first_at) AS conversation_id
            FROM failures GROUP BY event, subclass, fingerprint
            ORDER BY times DESC, event, subclass, fingerprint LIMIT 20
            """,
        ),
        Question(
            "one-sided-dialogs",
            "Which closed dialogs have sides that disagree about the number of messages?",
            """
            WITH sides AS (
                SELECT conversation_id, is_initiator, arg_max(service, "at") AS service,
                    max(sent) AS sent, max(received) AS received,
                    max(discarded_unread) AS discarded, max(undelivered) AS undelivered,
                    max("at") AS "at"
                FROM dialogs WHERE state = 'closed' GROUP BY conversation_id, is_initiator
            )
            SELECT one.conversation_id, one.service AS from_service, other.service AS to_service,
                one.sent, other.received, one.undelivered, make_timestamp(one."at") AS closed_at
            FROM sides one JOIN sides other
                ON other.conversation_id = one.conversation_id
                AND other.is_initiator <> one.is_initiator
            WHERE other.received > one.sent OR one.sent - other.received > one.undelivered
            ORDER BY closed_at DESC, one.conversation_id LIMIT 100
            """,
        ),
        Question(
            "dialog",
            "What did both sides log about one dialog?",
            """
            SELECT make_timestamp("at") AS "at", instance, broker, service, far_service,
                is_initiator, state, sent, acknowledged, received, discarded_unread,
                undelivered, outcome
            FROM dialogs WHERE conversation_id = $conversation_id ORDER BY ALL
            """,
            {"conversation_id": "0f8fad5b-d9cb-469f-a165-70867728950e"},
        ),
        Question(
            "largest-groups",
            "Which conversation groups had the most messages?",
            """
            SELECT instance, broker, name AS queue, "group", sum(messages) AS messages_at_least
            FROM groups WHERE "group" <> '' GROUP BY ALL
            ORDER BY messages_at_least DESC, 1, 2, 3, 4 LIMIT 20
            """,
        ),
        Question(
            "longest-locks",
            "Which locks of conversation groups were held longest, and by whom?",
            """
            SELECT round((max(seen_at) - since_at) / 1000000, 1) AS seconds, instance, broker,
                name AS queue, "group", make_timestamp(since_at) AS since_at,
                arg_max("by", seen_at) AS "by", arg_max(conversation_id, seen_at) AS dialog
            FROM held GROUP BY instance, broker, name, "group", held.since_at
            ORDER BY seconds DESC, 2, 3, 4, 5 LIMIT 20
            """,
        ),
        Question(
            "readers",
            "Which queues had too few readers, or readers without work?",
            """
            SELECT instance, broker, name AS queue,
                round(100.0 * sum(ceiling_us) / sum(watched_us), 1) AS at_ceiling_percent,
                round(100.0 * sum(idle_us) / sum(watched_us), 1) AS idle_percent,
                max(most_readers)::BIGINT AS most_readers, max(max_readers)::BIGINT AS max_readers,
                max(most_ready)::BIGINT AS most_ready
            FROM activation WHERE watched_us > 0 GROUP BY ALL
            ORDER BY at_ceiling_percent DESC, idle_percent DESC, 1, 2, 3 LIMIT 20
            """,
        ),
        Question(
            "changes",
            "When did daemons start, stop or change?",
            """
            SELECT make_timestamp("at") AS "at", instance, what, about
            FROM changes ORDER BY changes."at" DESC, 2, 3, 4 LIMIT 100
            """,
        ),
        Question(
            "stores",
            "How large are the stores, day by day?",
            """
            SELECT date, instance, broker,
                round(arg_max(last, last_at) FILTER (gauge = 'store_bytes') / 1e6, 1) AS store_mb,
                arg_max(last, last_at) FILTER (gauge = 'endpoints')::BIGINT AS dialog_endpoints
            FROM gauges WHERE gauge IN ('store_bytes', 'endpoints')
            GROUP BY date, instance, broker ORDER BY ALL
            """,
        ),
        Question(
            "days",
            "Which days are there, with how many segments and lines?",
            """
            SELECT s.date, count(DISTINCT s.file) AS segments,
                count(DISTINCT s.instance) AS instances, sum(s.lines) AS lines,
                coalesce(any_value(f.unusable), 0) AS unusable
            FROM stretches s
            LEFT JOIN (SELECT date, sum(lines) AS unusable FROM files GROUP BY date) f
                ON f.date = s.date
            GROUP BY s.date ORDER BY s.date
            """,
        ),
    )
}
"""The questions by name."""
