"""The first agent: greet everybody in the topic `greetings`.

flowshare send greetings world --app examples.first.app:app
flowshare worker examples.first.app:app
"""

import flowshare as fs

app = fs.App("hello", broker="embedded:///tmp/flowshare-hello")
greetings = app.topic("greetings", value_type=str)


@app.share_agent(greetings)
async def greet(name: str) -> None:
    print(f"Hello, {name}!")
