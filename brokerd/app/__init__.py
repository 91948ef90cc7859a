"""The comfortable layer of the SDK: typed dialogs, posts, deliveries, App (docs/spec/sdk.md).

It uses nothing but the verbs of `brokerd.client`, so whatever it does a program can do by hand.
Read it in this order; each module calls those above it:

    bodies       Python values to bytes and back; pure
    contract     message types of a contract, as Python types; pure
    dialog       one dialog as a block that ends it
    pool         one-way messages by key, on dialogs that are used again
    deliveries   the messages of a queue, each in a transaction of its own
    reader       batches of a queue, given to handlers
    app          handlers by queue and type; run in the daemon or in a process of one's own
    session      the verbs of the client, and all of the above

`log` is where this layer reports what it cannot raise.
"""
