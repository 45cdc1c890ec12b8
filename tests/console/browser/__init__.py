"""The console's pages in a real browser: how they look, what they do, what they say when something is gone."""
