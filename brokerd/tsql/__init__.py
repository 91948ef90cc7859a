"""T-SQL of Service Broker: read scripts, and write what brokerd has in their place (IMP).

In reading order:

- `tokens.py`: the text of a script as tokens, and the place of each in lines and columns.
- `tree.py`: the broker's statements as values.
- `cursor.py`: the tokens of a batch, one after the other, with what was expected of the next.
- `objects.py`: the grammar of statements about objects, endpoints and permissions.
- `verbs.py`: the grammar of the statements that a program uses: SEND, RECEIVE and the like.
- `parser.py`: finds the broker's statements among all others, batch by batch.
- `names.py`: the names of Service Broker that have another form here, and its catalog views.
- `assessment.py`: a verdict for each statement, as text, Markdown and JSON.
- `declaring.py`: the statements applied in order, so that objects remain.
- `blocks.py`: tables of a file of objects, as values and as text.
- `queues.py`, `routes.py`: the tables of queues, and those of routes, bindings and notifications.
- `objects_file.py`: all tables, as the file for `brokerd apply`.
- `handlers.py`: an App in Python in place of each activation procedure.
- `verdicts.py`: the verdict for each statement that declares nothing.
- `translation.py`: all of this for a list of scripts.

No module of this package reads a file, starts a program or asks a daemon.
"""
