"""Declared objects: message types, contracts, queues, services and others, as files state them.

In reading order:

- `declared.py`: the objects of one broker as values, and the changes from one state to another.
- `declarations.py`: reads a file or a request that declares objects.
- `forms.py`: the form of each kind of object, from a table to a value and back; `activation.py`,
  `poison.py` and `notifications.py` have those of their sections; `keys.py` reads single values.
- `event_names.py`: the events that a notification may ask for.
- `validation.py`: checks a body by the schema of its message type.

`admin/objects/` applies declarations to a running broker and calls this package; nothing here
reads a store or changes a broker.
"""
