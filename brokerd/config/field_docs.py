"""Docstrings of the fields of a class: the text below a field, which Python itself discards.

Reads:  the source of the class.      Calls: nothing.
Never:  needed to run the daemon; `config show --explain` and the reference pages use it.
"""

import ast
import inspect
import textwrap


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring of each field or enum member of a class, as one line, or "".

    Raises:
        OSError: the source of the class cannot be read.
    """
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef), "a class was asked for"
    found: dict[str, str] = {}
    field = None
    for statement in definition.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found[field := name] = ""
            case ast.Expr(value=ast.Constant(value=str(text))) if field is not None:
                found[field] = " ".join(text.split())
                field = None
            case _:
                field = None
    return found
