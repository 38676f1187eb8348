"""The words that people type into the search lead to the page that answers them."""

import re

import pytest

from tests.pages import ROOT

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PLACES = {
    "Excel": ("tables.md", "Files and ids"),
    "imbalance": ("tables.md", "Rare classes and class imbalance"),
    "currency": ("tables.md", "Files as they come"),
    "Jupyter": ("lightning.md", "Notebooks"),
    "pretrained": ("extending.md", "A bottom"),
    "proxy": ("guides/federation.md", "Firewall and proxy"),
    "GPU": ("guides/machines.md", "Several GPUs, several nodes"),
    "contribution": ("guides/contribution.md", "What each party adds"),
    "nodes": ("guides/machines.md", "Several GPUs, several nodes"),
    "missing values": ("tables.md", "How columns become numbers"),
    "straggler": ("faults.md", "Late, absent and crashing parties"),
}


def beginnings(page):
    """Heading and first paragraph of each section of a page: what the search shows of it."""
    text = FENCE.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    _, *parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    paragraphs = [body.strip().partition("\n\n")[0] for body in parts[1::2]]
    return {heading: f"{heading} {first}" for heading, first in zip(parts[::2], paragraphs, strict=True)}


@pytest.mark.parametrize("word", PLACES)
def test_a_word_is_in_the_heading_or_the_first_paragraph_of_its_section(word):
    page, heading = PLACES[word]
    assert word.lower() in beginnings(page)[heading].lower()
