"""The documentation site: sphinx-build -W -c docs . SITE, in the root of a clone.

The sources are the root's Markdown and this folder's, so that a page's links are right on the site,
in a clone and where a repository is browsed.
"""

project = "nvfp4kern"
copyright = "the authors of nvfp4kern"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md"]

extensions = ["myst_parser"]
myst_heading_anchors = 4  # links name headings as a repository's browser does

html_theme = "furo"
html_title = "nvfp4kern"
html_copy_source = False
html_show_sphinx = False
