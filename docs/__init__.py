"""The documentation: Markdown pages, and `python -m docs.build`, which makes an HTML site of them."""
