"""Administration: topics, share groups, their offsets and settings (`ShareAdmin`); where groups begin (`seeding`), how
they move between backends (`moving`).

Everything here is a request and its answer over one link; nothing runs in the background.
"""
