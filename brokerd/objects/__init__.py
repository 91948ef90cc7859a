"""Declared objects: message types, contracts, queues, services and others, as in files.

In reading order:

- `declared.py`: the objects of one broker as values, and the changes from one state to another.
- `declarations.py`: reads a file or a request that declares objects.
- `forms.py`: the form of each kind of object, from a table to a value and back; `activation.py`,
  `poison.py` and `notifications.py` have the forms of their parts; `keys.py` reads single values.
- `event_names.py`: the events to which a notification may subscribe.
- `validation.py`: checks a body by the schema of its message type.

`admin/objects/` applies declarations to a running broker and calls this package; no module of this
package reads a store or changes a broker.
"""
