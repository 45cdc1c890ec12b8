"""The names an application imports: `App`, and the declarations made with it.

- `app`: `App`, the decorators for share agents and pipelines, `running()` and `sending()`.
- `pipeline`: the declaration made by `@app.share_pipeline`; `flowshare.spark` runs it.
- `loading`: turns `module:app` into the App object.
- `summary`: the texts that a worker and `flowshare check` print about the agents.

Topics, timers, pages and settings come from Faust and are in `agents.faust`; agents themselves are in `agents.handler`.
"""
