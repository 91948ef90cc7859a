"""Settings of a daemon: their types, their file, and what a file may not say.

In reading order:

- `settings.py`: the tree of all settings, each with its default, range and description.
- `loading.py`: makes the tree of a file and the environment, and reports all problems at once.
- `toml_file.py`: reads TOML so that a problem names its line and key; `objects/` uses it as well.
- `exposure.py`: the listeners that other machines can reach, and the setting that permits each.
- `field_docs.py`: the descriptions below the fields, for the reference and for `config check`.

`cli/` loads the settings; `instance/` hands each part its own. No other package reads a file of
settings, and none has a default of its own.
"""
