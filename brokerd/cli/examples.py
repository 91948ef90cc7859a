"""Examples of commands, for the end of each command's help and for the reference page.

Reads:  nothing.      Calls: nothing.
Never:  has an example that the command line refuses: a test parses every example.
"""

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "demo": ("brokerd demo", "brokerd demo --dialogs 4 --no-kill"),
    "init": ("brokerd init", "brokerd init /etc/brokerd --pair --name east"),
    "completion": ("brokerd completion bash",),
    "call": (
        """brokerd call warehouse '{"sku": "A1"}' --contract orders/v1 --type Order""",
        "brokerd call warehouse --from shop --contract orders/v1 --type Order --wait 5s",
    ),
    "log tail": (
        "brokerd log tail -f -c brokerd.toml",
        "brokerd log tail --event queue_disabled --since 2d",
        "brokerd log tail --dialog 01234567-89ab-cdef-0123-456789abcdef",
    ),
    "serve": ("brokerd serve -c config/east.toml --objects config/east.objects.toml",),
    "config check": (
        "brokerd config check config/east.toml --objects config/east.objects.toml",
        "brokerd config check config/east.objects.toml",
    ),
    "config show": (
        "brokerd config show -c config/east.toml",
        "brokerd config show --explain --json",
    ),
    "apply": (
        "brokerd apply config/east.objects.toml --dry-run",
        "brokerd apply config/east.objects.toml",
    ),
    "page": ("brokerd page", "brokerd page -c config/east.toml"),
    "import": (
        "brokerd import setup.sql procedures.sql",
        "brokerd import setup.sql procedures.sql --out imported",
    ),
    "message-type create": ("brokerd message-type create Order validation=well_formed_json",),
    "contract create": ("brokerd contract create orders/v1 types.Order=initiator",),
    "queue create": ("brokerd queue create orders_q poison_mode=park",),
    "queue alter": (
        "brokerd queue alter orders_q status=off",
        "brokerd queue alter orders_q activation.max_readers=4",
    ),
    "queue drop": ("brokerd queue drop orders_q",),
    "queue ls": ("brokerd queue ls",),
    "queue show": ("brokerd queue show orders_q",),
    "queue browse": ("brokerd queue browse orders_q --max 10",),
    "queue drain": ("brokerd queue drain orders_q --grace 30s",),
    "queue purge": (
        "brokerd queue purge orders_q --dry-run",
        """brokerd queue purge orders_q --error 17 --description "sent by mistake" --yes""",
    ),
    "service create": ("brokerd service create orders queue=orders_q contracts=orders/v1",),
    "priority create": ("brokerd priority create orders_first contract=orders/v1 level=7",),
    "route create": ("brokerd route create to_orders service=orders address=TCP://10.0.0.7:4022",),
    "route explain": ("brokerd route explain orders",),
    "route test": ("brokerd route test orders",),
    "route serve": ("brokerd route serve config/routes.toml --declare",),
    "instance-route create": (
        "brokerd instance-route create to_orders service=orders address=TCP://10.0.0.7:4022",
    ),
    "peer pair": (
        "brokerd peer pair --share orders",
        "brokerd peer pair CODE --share shop",
        "brokerd peer pair - --create shop",
    ),
    "binding create": ("brokerd binding create to_orders service=orders principal=peer:west",),
    "event create": (
        "brokerd event create watch QUEUE_STATUS_CHANGED GROUP_PARKED --service operators",
    ),
    "peer add": ("brokerd peer add west --certificate west.pem --at TCP://10.0.0.7:4022",),
    "peer ls": ("brokerd peer ls",),
    "peer revoke": ("brokerd peer revoke west", "brokerd peer revoke west --with-routes"),
    "audit": (
        "brokerd audit --since 2h",
        "brokerd audit --refused --principal alice",
        "brokerd audit --event granted --event revoked --all --json",
    ),
    "client new": ("brokerd client new billing --out billing-keys",),
    "client add": ("brokerd client add billing --certificate billing.pem",),
    "client revoke": ("brokerd client revoke billing",),
    "certificate ls": ("brokerd certificate ls",),
    "certificate export": ("brokerd certificate export", "brokerd certificate export --next"),
    "certificate check-copy": (
        "brokerd certificate check-copy west.pem",
        "brokerd certificate check-copy west.pem --id 3f9a2c7141d08be6a5c0914ee7d2b3f8",
    ),
    "certificate renew": ("brokerd certificate renew",),
    "certificate switch": (
        "brokerd certificate switch",
        "brokerd certificate switch --wait 60s",
        "brokerd certificate switch --anyway",
    ),
    "certificate rotate-key": ("brokerd certificate rotate-key",),
    "certificate replace-key": ("brokerd certificate replace-key --yes",),
    "certificate drop": ("brokerd certificate drop 3f9a2c71",),
    "doctor": (
        "brokerd doctor",
        "brokerd doctor shop orders --contract orders/v1",
        "brokerd doctor --watch 30s --new",
    ),
    "status": ("brokerd status", "brokerd status --check"),
    "explain": (
        "brokerd explain D45",
        "brokerd explain peer_queue_full",
        "brokerd explain clients",
    ),
    "top": ("brokerd top", "brokerd top --once"),
    "send": ("brokerd send --from shop --to orders --contract orders/v1 --type Order --body '{}'",),
    "receive": ("brokerd receive orders_q --wait 10s --ack",),
    "worker run": ("brokerd worker run shop.orders:app",),
    "activator serve": ("brokerd activator serve activator.toml",),
    "dialog ls": ("brokerd dialog ls", "brokerd dialog ls --state CO --older-than 1h"),
    "dialog show": ("brokerd dialog show 01234567-89ab-cdef-0123-456789abcdef",),
    "dialog timeline": ("brokerd dialog timeline 01234567-89ab-cdef-0123-456789abcdef",),
    "dialog status": ("brokerd dialog status 01234567-89ab-cdef-0123-456789abcdef",),
    "dialog end": ("brokerd dialog end 01234567-89ab-cdef-0123-456789abcdef",),
    "group ls": ("brokerd group ls --parked",),
    "group release": ("brokerd group release 01234567-89ab-cdef-0123-456789abcdef",),
    "transmission ls": ("brokerd transmission ls --older-than 5min",),
    "endpoint alter": ("brokerd endpoint alter forwarding=true forward_size_mb=20",),
    "endpoint show": ("brokerd endpoint show",),
    "destination ls": ("brokerd destination ls",),
    "grant": (
        'brokerd grant "send on urn:orders to peer:west"',
        "brokerd grant receive on main/orders to alice",
    ),
    "revoke": ('brokerd revoke "send on urn:orders to peer:west"',),
    "who-can": (
        "brokerd who-can",
        "brokerd who-can send on urn:orders",
        "brokerd who-can --principal alice",
    ),
    "destination retry": ("brokerd destination retry all",),
    "ping": ("brokerd ping orders",),
    "broker ls": ("brokerd broker ls",),
    "broker disable": ("brokerd broker disable main",),
    "broker clean-up": ("brokerd broker clean-up main --state CD --dry-run --reason leftovers",),
    "store backup": (
        "brokerd store backup /var/backups/main.db",
        "brokerd store backup /mnt/chain --follow -c /etc/brokerd/brokerd.toml",
    ),
    "store restore": (
        "brokerd store restore --list /mnt/chain",
        "brokerd store restore /mnt/chain /var/lib/brokerd --at 2026-11-27T12:00:00Z",
    ),
    "store copy": (
        "brokerd store copy /var/lib/brokerd/main.db 'postgresql://brokerd@db1/brokerd'",
        "brokerd store copy -c /etc/brokerd/brokerd.toml --to 'postgresql://brokerd@db1/brokerd'",
    ),
    "store accept-server": (
        "brokerd store accept-server -c /etc/brokerd/brokerd.toml",
        "brokerd store accept-server -c /etc/brokerd/brokerd.toml --yes",
    ),
    "store verify": ("brokerd store verify /var/lib/brokerd/main.db",),
    "bench local": ("brokerd bench local --seconds 5",),
    "bench peer": ("brokerd bench peer --dialogs 64 --save after.json",),
    "ship": ("brokerd ship /srv/metrics -c config/east.toml",),
    "report run": ("brokerd report run --date 2026-11-18 --output reports",),
}
"""Lines with examples, by the path of a command."""
