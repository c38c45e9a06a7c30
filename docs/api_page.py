"""The API reference as Markdown, from the signatures and docstrings of the public names."""

import dataclasses
import inspect
import re
import textwrap

import dubnb
from dubnb.methods._method import Method

HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
LISTED = ("Parameters", "Attributes", "Returns", "Raises", "Yields")  # numpydoc sections of "name : type" entries
# What a reader calls on a fitted model, in the order of use. The other public methods are hooks for authors of methods.
CALLED = ("fit", "refitted", "evaluate", "recommend", "recommend_all", "predict", "decision_function", "fold_in")
CALLED += ("similar_items", "export", "save", "plot_history", "get_params", "set_params", "resolved_params", "grid")
INTRODUCTION = """\
# API reference

Every public name of `dubnb`, from its docstring. The [methods](#methods) share their parameters and what a fitted model
can do: both are described once, under [all methods](#all-methods).
"""
SHARED = """\
### All methods

Every method takes these parameters. One that is `None` takes the default of the method for its backbone and solver;
many defaults follow from the log.
"""


def markdown():
    """The whole page."""
    public = {name: getattr(dubnb, name) for name in sorted(dir(dubnb), key=str.lower)}
    classes = {name: value for name, value in public.items() if inspect.isclass(value)}
    methods = {name: cls for name, cls in classes.items() if issubclass(cls, Method)}
    errors = {name: cls for name, cls in classes.items() if issubclass(cls, Exception)}
    others = {name: value for name, value in public.items() if callable(value) and name not in {**methods, **errors}}
    parts = [INTRODUCTION, "## Functions and data\n"]
    for name, value in others.items():
        parts += entry(f"### dubnb.{name}", value, name)
        if inspect.isclass(value):
            for method, function in inspect.getmembers(
                value, lambda each: inspect.isfunction(each) or inspect.ismethod(each)
            ):
                if not method.startswith("_"):
                    parts += entry(f"#### {name}.{method}", function, method)
    parts += ["## Methods\n", SHARED, _sections(inspect.getdoc(Method), Method, skip=("",))]
    for method in CALLED:
        parts += entry(f"#### model.{method}", getattr(Method, method), method)
    shared = {field.name for field in dataclasses.fields(Method)}
    for name, cls in methods.items():
        parts += [f"### dubnb.{name}\n", _sections(inspect.getdoc(cls), cls, known=shared)]
        parts += [f'By name: `dubnb.make("{cls.name}")`. Other parameters: [all methods](#all-methods).\n']
    parts += ["## Errors\n"]
    for name, cls in errors.items():
        parts += [f"### dubnb.{name}\n", _sections(inspect.getdoc(cls), cls)]
    return "\n".join(part.rstrip() + "\n" for part in parts if part.strip())


def entry(heading, function, name):
    """Heading, signature and docstring of one function or class."""
    return [
        heading + "\n",
        f"```python\n{_signature(name, function)}\n```\n",
        _sections(inspect.getdoc(function), function),
    ]


def _signature(name, function):
    """`name(a, b=1)`: types stand in the list of parameters."""
    words, named = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            words.append("*")
            named = True
        prefix = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        words.append(
            prefix + parameter.name + ("" if parameter.default is parameter.empty else f"={_default(parameter)}")
        )
    text = ", ".join(word.replace(" ", "\0") for word in words)  # no line ends inside a default
    lines = textwrap.wrap(text, 76, break_long_words=False, break_on_hyphens=False)
    text = "".join(lines) if len(lines) < 2 else "\n" + textwrap.indent("\n".join(lines), "    ") + "\n"
    return f"{name}({text})".replace("\0", " ")


def _default(parameter):
    return "..." if callable(parameter.default) else repr(parameter.default).replace("'", '"')


def _sections(docstring, documented, known=(), skip=()):
    """A numpydoc docstring as Markdown, without the parameters whose names are `known`."""
    head, *rest = HEADING.split((docstring or "").strip() + "\n")
    sections = [("", head), *zip(rest[::2], rest[1::2], strict=True)]
    return "\n".join(_section(title, body, documented, known) for title, body in sections if title not in skip)


def _section(title, body, documented, known):
    if title in LISTED:
        entries = re.split(r"\n(?=\S)", body.strip())
        text = "\n".join(filter(None, (_definition(entry, documented, known) for entry in entries)))
        return f"**{title}**\n\n{text}" if text else ""
    if title.startswith("Example"):
        body = re.sub(
            r"(?:^(?:>>>|\.\.\.).*\n(?:(?!>>>|\.\.\.|\n).*\n)*)+", r"```pycon\n\g<0>```\n", body, flags=re.MULTILINE
        )
    else:
        body = "\n".join(_line(line) for line in body.splitlines())
    return f"**{title}**\n\n{body}\n" if title else f"{body}\n"


def _definition(entry, documented, known):
    """One "name : type" entry with its text, as an item of a definition list."""
    first, *text = entry.splitlines()
    names, _, kind = first.partition(" : ")
    kept = [name for name in names.split(", ") if name not in known]
    if not kept:
        return ""
    parameters = inspect.signature(documented).parameters if callable(documented) else {}
    defaults = [parameters[name] for name in kept if name in parameters]
    shown = [
        _default(each) for each in defaults if each.default not in (each.empty, None) and not callable(each.default)
    ]
    term = ", ".join(f"`{name}`" for name in kept)
    term += f" : *{kind}*" if kind else ""
    term += f", default `{', '.join(shown)}`" if shown else ""
    body = [_line(line.strip()) for line in text] or ["(no description)"]
    return f"{term}\n: " + "\n  ".join(body) + "\n"


def _line(line):
    """A line of prose: nothing in it is HTML, or begins a list or a heading by accident."""
    if line.startswith("    "):
        return line  # a formula
    pieces = re.split(r"(`[^`]*`)", line)
    line = "".join(piece if piece.startswith("`") else piece.replace("<", "&lt;") for piece in pieces)
    return re.sub(r"^(\s*)([+#>])(?=\s)", r"\1\\\2", line)
