"""Kafkas in memory that do what a single healthy one does not: two brokers, damaged answers, a log that was cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from flowshare.client.errors import NotConnected
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from tests.fleet.kafka import HOST, PORT, FakeConnection, FakeKafka


class PairKafka(FakeKafka):
    """Two brokers over one storage: node 1 leads the even partitions and node 2 the odd ones, unless `leaders` says so.

    dead: nodes that do not answer. slow: nodes of which every answer is held, until they are taken out.
    """

    def __init__(self, clock):
        super().__init__(clock)
        self.leaders = {}
        self.dead = set()
        self.slow = set()
        self.of_node = {}

    async def open_node(self, host, port, client_id):
        node = port - PORT + 1
        if node in self.dead:
            raise NotConnected(f"broker {node} is dead")
        connection = FakeConnection(self, self.server.connect(client_id=client_id, host="10.0.0.1"))
        self.connections.add(connection)
        self.of_node[connection] = node
        return connection

    async def kill(self, node):
        self.dead.add(node)
        for connection in tuple(self.connections):
            if self.of_node[connection] == node:
                await connection.break_off()

    def leader(self, partition):
        return self.leaders.get(partition, 1 + partition % 2)

    async def carry_out(self, connection, request):
        node = self.of_node[connection]
        while node in self.slow:
            await connection.or_broken(self.clock.sleep(0.05))
        wrong = ErrorCode.NOT_LEADER_OR_FOLLOWER
        match request:
            case m.MetadataRequest():
                answer = await super().carry_out(connection, request)
                nodes = {1: (HOST, PORT), 2: (HOST, PORT + 1)}
                topics = tuple(
                    replace(topic, leaders=tuple(self.leader(number) for number in range(topic.partitions)))
                    for topic in answer.topics
                )
                return replace(answer, topics=topics, nodes=nodes)
            case m.FetchRequest() if any(self.leader(part.partition) != node for part in request.partitions):
                mine = tuple(part for part in request.partitions if self.leader(part.partition) == node)
                # An answer with an error does not wait.
                answer = await super().carry_out(connection, replace(request, partitions=mine, max_wait_ms=0))
                found = {(part.topic, part.partition): part for part in answer.partitions}
                return m.FetchResponse(
                    partitions=tuple(
                        found.get(part[:2]) or m.FetchedLog(topic=part.topic, partition=part.partition, error=wrong)
                        for part in request.partitions
                    )
                )
            case m.ListOffsetsRequest() if self.leader(request.partition) != node:
                return m.ListOffsetsResponse(error=wrong)
        return await super().carry_out(connection, request)


class LyingKafka(FakeKafka):
    """Its fetch answers go through `change(asked, answer)`; its metadata through `topics(answer)`."""

    def __init__(self, clock):
        super().__init__(clock)
        self.change = lambda _, answer: answer
        self.topics = lambda answer: answer

    async def carry_out(self, connection, request):
        answer = await super().carry_out(connection, request)
        if isinstance(request, m.MetadataRequest):
            return self.topics(answer)
        if not isinstance(request, m.FetchRequest):
            return answer
        parts = zip(request.partitions, answer.partitions, strict=True)
        return replace(answer, partitions=tuple(self.change(asked, part) for asked, part in parts))


class Session:
    """A broker's memory of a fetch session."""

    def __init__(self):
        self.epoch = 1
        self.places = {}
        self.bounds = {}


class SessionKafka(FakeKafka):
    """Keeps fetch sessions as Kafka's brokers do. told: how often each partition was named in one."""

    def __init__(self, clock):
        super().__init__(clock)
        self.sessions = {}
        self.told = Counter()
        self._ids = 0

    async def carry_out(self, connection, request):
        if not isinstance(request, m.FetchRequest) or request.session is None:
            return await super().carry_out(connection, request)
        number, epoch = request.session
        if (number, epoch) == (0, 0):
            self._ids += 1
            number = self._ids
            session = self.sessions[number] = Session()
        else:
            session = self.sessions.get(number)
            if session is None:
                return m.FetchResponse(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if session.epoch != epoch:
                return m.FetchResponse(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            session.epoch += 1
        for part in request.partitions:
            self.told[part.partition] += 1
            session.places[part.topic, part.partition] = part
        for place in request.forgotten:
            session.places.pop(place, None)
        whole = replace(request, partitions=tuple(session.places.values()), session=None, forgotten=())
        answer = await super().carry_out(connection, whole)
        news = tuple(part for part in answer.partitions if self._is_news(session, part))
        for part in news:
            session.places[part.topic, part.partition] = session.places.pop((part.topic, part.partition))
        return replace(answer, partitions=news, session_id=number)

    def _is_news(self, session, part):
        bounds = part.high_watermark, part.log_start
        changed = session.bounds.get((part.topic, part.partition)) != bounds
        session.bounds[part.topic, part.partition] = bounds
        return bool(changed or part.records or part.error is not ErrorCode.NONE)
