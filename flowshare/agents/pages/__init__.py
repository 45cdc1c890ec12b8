"""The right to ask for a web page, and the listeners of pages.

- `gate`: decides from a request's headers alone.
- `site`: listens, with bounds for connections and requests, and asks the gate before every page.
- `own_user`: the process's own user asks by a Unix socket beside the port.

The pages are in `flowshare.web`; an app's own pages are served by `agents.faust.web`.
"""
