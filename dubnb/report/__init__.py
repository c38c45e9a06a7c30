"""Output for readers: text and Markdown tables, figures, plots and HTML pages."""
