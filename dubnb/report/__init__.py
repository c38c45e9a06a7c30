"""How results are shown: text tables, Markdown tables, plots."""
