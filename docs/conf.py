"""The documentation site: sphinx-build -W -c docs . SITE, in the root of a clone.

The sources are the root's Markdown and this folder's, so that a page's links are right on the site,
in a clone and where a repository is browsed. While the site is built, docs/operators.md gets the
operators' arguments from build_tools/operators.py, and docs/index.md becomes the contents.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "build_tools"))
import generate  # noqa: E402

project = "nvfp4kern"
copyright = "the authors of nvfp4kern"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md"]

extensions = ["myst_parser"]
myst_heading_anchors = 4  # links name headings as a repository's browser does
smartquotes = False  # 'amax' is a word that a call takes

html_theme = "furo"
html_title = "nvfp4kern"
html_copy_source = False
html_show_sphinx = False


def escaped(text):
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


def named_item(match):
    return f"- **{match[1][:-2]}**: " if match[1] else "- "


def markdown_of(doc):
    """A docstring's paragraphs. One with `name: words` or indented lines is a list."""
    parts = []
    for paragraph in re.split(r"\n\n+", doc.strip()):
        if not re.search(r"^(\w+(, \w+)*: |    )", paragraph, flags=re.M):
            parts.append(escaped(paragraph))
            continue
        items = escaped(re.sub(r"\n +", " ", paragraph))
        parts.append(re.sub(r"^([\w\\]+(?:, [\w\\]+)*: )?", named_item, items, flags=re.M))
    return "\n\n".join(parts)


def reference():
    """{name: signature and words}, of each operator and of the functions beside them."""
    found = {}
    for op in generate.OPERATORS:
        texts = [
            p.name if generate.required(p) else f"{p.name}={generate.python_default(p.default)}"
            for p in op.parameters
        ]
        head = generate.in_lines(f"nvfp4kern.{op.name}", generate.starred(op, texts), "")
        found[op.name] = head, op.doc.replace("{tensors}", "")
    for name, signature, _, doc in generate.table.OTHERS:
        head = f"nvfp4kern.{name}" + re.sub(r"\$module, (/(, )?)?", "", signature)
        found[name] = head, doc.partition("\n>>>")[0]
    return {
        name: f"```python\n{head}\n```\n\n{markdown_of(generate.words_of(doc))}\n\n"
        for name, (head, doc) in found.items()
    }


def add_reference(source):
    """Behind the example of each section what the table says."""
    words, shared = reference(), generate.table.SHARED
    first, *sections = re.split(r"^(?=## )", source, flags=re.M)
    first += markdown_of(f"{shared['{tensors}']}\n\n{shared['{errors}']}") + "\n\n"
    named = [(section, re.match(r"## (\w+)\n", section)[1]) for section in sections]
    return first + "".join(f"{section}\n{words[name]}" for section, name in named)


def add_contents(source):
    """The pages that a section's links name are a part of the site's contents."""
    first, *sections = re.split(r"^(?=## )", source, flags=re.M)
    for section in sections:
        options = f":hidden:\n:caption: {section.splitlines()[0][3:]}"
        pages = "\n".join(
            f"{title} <{page}>" for title, page in re.findall(r"\[(.+?)\]\((\S+)\.md\)", section)
        )
        first += f"{section}\n```{{toctree}}\n{options}\n\n{pages}\n```\n\n"
    return first


CHANGED = {"docs/index": add_contents, "docs/operators": add_reference}


def change(app, docname, source):
    source[0] = CHANGED.get(docname, str)(source[0])


def setup(app):
    app.connect("source-read", change)
