"""Settings of a daemon: their types, their file, and the rules for their values.

In reading order:

- `settings.py`: the tree of all settings, each with its default, range and description.
- `loading.py`: builds the tree from a file and the environment; reports all problems at once.
- `toml_file.py`: reads TOML so that a problem names its line and key; `objects/` uses it as well.
- `exposure.py`: the listeners that other machines can reach, and the setting that permits each.
- `field_docs.py`: the descriptions below the fields, for the reference and `config show`.

`cli/` loads the settings; `instance/` hands each part its own. No other package reads a file of
settings, and none has a default of its own.
"""
