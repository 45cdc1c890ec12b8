"""The adapter to Faust: the only place that imports it.

- `app`: `FaustApp`, the part of an app that is Faust's, and its producer; `settings`: its options, except for the
  broker's URL.
- `topic`: `Topic`, which sends through flowshare's producer; `models`: `Record`, serializers, the registry of types.
- `streams`, `transport`: Faust's own agents, streams and tables, on Faust's consumer.
- `web`: the server of an app's own pages.

Share agents do not go through any of this: their records come by `agents.feed`.
"""
