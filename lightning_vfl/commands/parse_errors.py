"""One line for what the parser prints in forty: which setting, what is wrong with it, and what to write instead."""

import argparse
import difflib
import inspect
import re
from importlib import import_module
from typing import NoReturn

from lightning_vfl.commands.recipes import own_classes

_KEY = re.compile(r'Parser key "([^"]+)"')
_SUBTYPES = re.compile(r"Subtypes: \[([^\n]+)\]")
_CLASS = re.compile(r"Problem with given class_path '([^']+)'")
_REASONS = (
    re.compile(r"Option '(?P<option>[^']+)' is not accepted"),
    re.compile(r"Group '[^']*' does not accept (?:nested key|option) '(?P<option>[^']+)'"),
    re.compile(r"Expected a dot import path string: (?P<unknown>\S+)"),
    re.compile(r"[Uu]nexpected import path format: (?P<unknown>\S+)"),
    re.compile(r"the following arguments are required: (?P<required>.+)"),
    re.compile(r"[Uu]nrecognized arguments: (?P<stray>.+)"),
    re.compile(r"Expected a typing\.Literal\[(?P<words>[^\]]+)\]\. Got value: (?P<given>.+)"),
    re.compile(r"(?P<plain>Expected a <class '(?!NoneType|collections)[^>]+>\.? ?Got value: .+)"),
    re.compile(r"(?P<plain>Multiple subclasses with name .+)"),
    re.compile(r"(?P<plain>(?:Unable to import|No module named|module '\S+' has no attribute|cannot import) ?.+)"),
)


class OneLineParser(argparse.ArgumentParser):
    """The parser of the commands that are not LightningCLI's."""

    def error(self, message: str) -> NoReturn:
        """One line, like the rest of the command line, instead of the usage."""
        self.exit(2, f"lightning-vfl: error: {message}; {self.prog} --help lists what there is\n")


def one_line(message: str) -> str:
    """The cause of a parser's error, on one line."""
    keys = ".".join(dict.fromkeys(_KEY.findall(message)))
    where = f"{keys}: " if keys else ""
    classes = _CLASS.findall(message)
    for reason in _REASONS:
        found = reason.search(message)
        if found is not None:
            groups = found.groupdict()
            if "words" in groups and any("typing.Literal" in kinds for kinds in _SUBTYPES.findall(message)):
                continue  # one of several kinds, all of which are named below
            if "option" in groups:
                return where + _unknown_option(groups["option"], classes[-1] if classes else None)
            if "unknown" in groups:
                return where + _unknown_class(groups["unknown"])
            if "required" in groups:
                who = f"{classes[-1].rsplit('.', 1)[-1]} " if classes else ""
                return f"{where}{who}needs a value for {groups['required'].strip()}; set it in a recipe or as an option"
            if "stray" in groups:
                return f"unknown option {groups['stray'].strip()}; see --help"
            if "words" in groups:
                return f"{where}'{groups['given'].strip()}' is none of {groups['words'].replace(chr(39), '')}"
            return where + groups["plain"].strip().rstrip(".").replace("<class '", "").replace("'>", "")
    if "Subtypes: [" in message:
        innermost = message.rsplit("Subtypes: [", 1)[1]
        kinds = innermost.split("]\n")[0].replace("<class '", "").replace("'>", "").replace("NoneType", "null")
        value = re.search(r"Given value: (?:NestedArg\(key='(?P<key>.+?)', val=)?(?P<value>[^\n)]+)", innermost)
        if value is not None and value["value"].startswith("{'init_args'"):
            if keys == "data":
                return "data: no recipe names the data set; add one (--config data/digits)"
            return f"{where}settings without a class; put the recipe that names it first (policy after protocol)"
        if value is not None:
            kinds = re.sub(r"typing\.Literal\[([^\]]+)", r"\1", kinds).replace("]", "")
            return f"{where}{value['value'].strip()} is none of {kinds}"
    lines = [line.strip(" -") for line in message.splitlines() if line.strip(" -")]
    return " ".join(lines[:2]) if keys else (lines[0] if lines else "unreadable arguments")


def _unknown_class(name: str) -> str:
    near = difflib.get_close_matches(name.rsplit(".", 1)[-1], own_classes(), n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "give one of the toolkit's classes or a full import path"
    return f"'{name}' is not a known class; {hint}"


_NO_PLACE = {  # settings of other protocols that users try, and why they mean nothing here
    "AsyncVFL": (("waiting", "missing"), "it waits for nobody; leave the policy recipe out"),
    "DecoupledVFL": (
        ("waiting", "missing", "aggregator"),
        "its hosts join the latest embeddings, and nobody waits; leave the policy or the aggregator out",
    ),
}


def _settings(kind: type) -> dict[str, None]:
    """The settings of a class, those that it hands on to its base among them."""
    names: dict[str, None] = {}
    for owner in kind.__mro__ if isinstance(kind, type) else (kind,):
        parameters = inspect.signature(owner).parameters.values()
        names |= {p.name: None for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return {name: None for name in names if name not in _NO_PLACE.get(kind.__name__, ((), ""))[0]}


def _unknown_option(option: str, class_path: str | None) -> str:
    owner, hint = "", "see --help"
    if class_path is not None:
        module, _, name = class_path.rpartition(".")
        settings = list(_settings(getattr(import_module(module), name)))
        near = difflib.get_close_matches(option, settings, n=2, cutoff=0.6)
        owner, hint = f" of {name}", f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(settings)}"
        strangers, why = _NO_PLACE.get(name, ((), ""))
        if option.split(".")[0] in strangers:
            hint = why
    return f"'{option}' is not a setting{owner}; {hint}"
