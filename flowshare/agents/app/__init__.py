"""What an application imports: `App`, and what it declares with it.

- `app`: `App`, the decorators for share agents and pipelines, `running()` and `sending()`.
- `pipeline`: what `@app.share_pipeline` declares; `flowshare.spark` runs it.
- `loading`: `module:app` to the App object.
- `summary`: what a worker and `flowshare check` say of the agents.

Topics, timers, pages and settings are Faust's and in `agents.faust`; agents themselves in `agents.handler`.
"""
