"""A hook of mkdocs: lines of code do not end within ``--option``, where browsers may end them after a hyphen."""

import re
from typing import Any

_OPTION = re.compile(r"(?<=[\s>(])--\w[\w.+-]*")


def on_page_content(html: str, **_: Any) -> str:
    """The page with a span around every option in code; what is copied stays the same.

    Examples:
        >>> on_page_content("a -- b <code>fit --config x</code>")
        'a -- b <code>fit <span class="option">--config</span> x</code>'
    """
    return re.sub(r"<code.*?</code>", _with_spans, html, flags=re.DOTALL)


def _with_spans(code: re.Match[str]) -> str:
    return _OPTION.sub(r'<span class="option">\g<0></span>', code[0])
