"""The convenience layer of the SDK: typed dialogs, posts, deliveries, App (docs/spec/sdk.md).

It uses only the verbs of `brokerd.client`, so a program can do the same by hand. Read the modules
in this order; each calls only modules above it:

    bodies       Python values to bytes and back; pure
    contract     message types of a contract, as Python types; pure
    dialog       one dialog as a block that ends it
    pool         one-way messages by key, on reused dialogs
    deliveries   the messages of a queue, each in a transaction of its own
    reader       batches of a queue, given to handlers
    app          handlers by queue and type; run in the daemon or in a separate process
    tracing      spans of sends, receives and handlers; used by `app` and by sessions
    session      the verbs of the client, and methods for all of the above

`log` is the log for errors that this layer cannot raise.
"""
