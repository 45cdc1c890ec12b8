"""The adapter to Faust: the only place that imports it.

- `app`: `FaustApp`, Faust's part of an app, and its producer; `settings`: its options, except for the broker's URL.
- `topic`: `Topic`, which sends through flowshare's producer; `models`: `Record`, serializers, the registry of types.
- `jobs`, `cron`: timers, cron jobs and tasks.
- `streams`, `transport`: Faust's own agents, streams and tables, on Faust's consumer.
- `web`: the server of an app's own pages.

Share agents use nothing of this: their records come from `agents.feed`.
"""
