"""A payment service with bad days: every third call gets 503, amounts above 1,000 get 422. Keys are idempotent."""

from aiohttp import web

CHARGED = web.AppKey("charged", dict[str, int])
"""The amounts that the service charged, by idempotency key."""


def make_service() -> web.Application:
    """The service."""
    charged: dict[str, int] = {}
    calls = 0

    async def charge(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        order = await request.json()
        if order["amount"] > 1000:
            return web.Response(status=422, text="more than 1,000")
        if calls % 3 == 0:
            return web.Response(status=503, text="busy")
        charged.setdefault(order["key"], order["amount"])
        return web.json_response({"charged": charged[order["key"]]})

    service = web.Application()
    service[CHARGED] = charged
    service.router.add_post("/charge", charge)
    return service


if __name__ == "__main__":
    web.run_app(make_service(), host="127.0.0.1", port=8099)
