"""The client library: every verb of Service Broker over one connection to a daemon.

It knows the wire and never the store. A request goes down this list, and its answer comes up:

    connecting   makes the first connection of a session; `address`: where the daemon listens
    session      a program's client of one broker; verbs that are a transaction each
      autocommit   receives outside a transaction of the program
      groups       a transaction that begins with a lock; `admin`, `views`: other verbs
    transaction  several verbs that take effect together; `savepoint`, `outcomes`: parts of it
      arguments    checks before anything is sent; `messages`: values that come back
      exchange     collects the verbs of a transaction, or writes each at once
    link         unanswered requests, over connections that are lost and replaced
      requests     kinds of requests, `tokens`: numbers of commits, `failures`: errors by code
      dialer       opens a connection, retrying until a deadline
    connection   one stream: frames, pings, silence

`recorder` and `recording` report the requests of a session, `file_recorder` to a file.
"""
