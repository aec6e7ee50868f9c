"""The clients of a simulated run: in this process, or in forked worker processes.

Much of what a client does holds Python's global lock, so several processes simulate many clients faster. Each
client stays in one worker for the whole run. Messages cross as the bytes of `wire.py`, masked vectors through
shared memory. Nothing is pickled.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np

from secagg.agreement.plan import Plan
from secagg.crypto import hashing
from secagg.crypto.segments import Update
from secagg.errors import SecAggError, UsageError
from secagg.exposure import Verdict
from secagg.protocol import wire
from secagg.protocol.cache import Agreed, NoCache
from secagg.protocol.client import Client
from secagg.protocol.messages import MaskedInput, ToClient, ToServer
from secagg.protocol.result import Stage
from secagg.types import ClientId, Ring32

Inputs = Mapping[ClientId, Update]
Tamper = Callable[[Stage, ToServer], ToServer | bytes | None]
Reply = ToServer | bytes | None
Requests = Iterator[tuple[ClientId, ToClient | None]]


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One client's reply to one message, and its cost."""

    client: ClientId
    reply: Reply
    seconds: float  # of CPU time
    received: int  # bytes of the message that it answers

    @property
    def sent(self) -> int:
        """Bytes of the reply."""
        if self.reply is None:
            return 0
        return len(self.reply) if isinstance(self.reply, bytes) else wire.size(self.reply)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the clients of a simulated run do: how each is made, its input, and who tampers with messages.

    The functions in it run in the process that holds the client, which may be a forked one.
    """

    plan: Plan
    make: Callable[[ClientId], Client]
    inputs: Inputs
    tamper: Mapping[ClientId, Tamper]

    def answer(self, client: Client, stage: Stage, message: ToClient | None, out: Ring32 | None = None) -> Reply:
        """One client's reply to one message; None if it refuses, which makes it a dropout.

        If `out` is given, masked vectors are written there.
        """
        try:
            if message is None:
                reply: ToServer = client.hello()
            elif stage is Stage.SHARES:
                reply = client.receive(message, context=self.plan.context)
            elif stage is Stage.INPUTS:
                reply = client.receive(message, update=self.inputs[client.me], out=out)
            else:
                reply = client.receive(message)
        except UsageError:
            raise
        except SecAggError:
            return None
        tamper = self.tamper.get(client.me)
        return tamper(stage, reply) if tamper else reply


class SharedCache(NoCache):
    """Remembers the last plan and the last verdict, so that clients of one process do not compute them n times.

    Both depend on public data alone. A real client does not need this.
    """

    def __init__(self) -> None:
        self._plan: tuple[tuple[bytes, int, int, bytes], Plan] | None = None
        self._verdict: tuple[tuple[bytes, tuple[ClientId, ...]], Verdict] | None = None

    def plan(self, agreed: Agreed, round: int, cell: int, context: bytes) -> Plan:
        key = (agreed.fingerprint, round, cell, context)
        if self._plan is None or self._plan[0] != key:
            self._plan = (key, super().plan(agreed, round, cell, context))
        return self._plan[1]

    def verdict(self, plan: Plan, survivors: tuple[ClientId, ...]) -> Verdict:
        key = (plan.hash, survivors)
        if self._verdict is None or self._verdict[0] != key:
            self._verdict = (key, super().verdict(plan, survivors))
        return self._verdict[1]


class InProcessClients:
    """All clients in this process, one after the other."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._clients: dict[ClientId, Client] = {}
        plan = scenario.plan
        self._memory = np.empty((len(plan.groupings), plan.length), np.uint32)  # one client's vectors at a time

    def answers(self, stage: Stage, requests: Requests) -> Iterator[Answer]:
        last, size = None, 0
        for client, message in requests:
            if message is not last:
                last, size = message, 0 if message is None else wire.size(message)
            start = time.process_time()
            if client not in self._clients:
                self._clients[client] = self._scenario.make(client)
            memory = self._memory if client not in self._scenario.tamper else None
            reply = self._scenario.answer(self._clients[client], stage, message, memory)
            yield Answer(client, reply, time.process_time() - start, size)
            del reply  # keep only one client's vectors in memory

    def close(self) -> None:
        self._clients.clear()


class ForkedClients:
    """Clients in forked processes; each process keeps at most two clients' vectors in memory."""

    def __init__(self, scenario: Scenario, processes: int) -> None:
        self._plan = scenario.plan
        self._workers: list[_Worker] = []
        hashing.has_kernel()
        try:
            for _ in range(processes):
                self._workers.append(_Worker(scenario, self._workers))
        except OSError:
            self.close()
            raise

    def answers(self, stage: Stage, requests: Requests) -> Iterator[Answer]:
        queues: list[deque[tuple[ClientId, ToClient | None]]] = [deque() for _ in self._workers]
        place = self._plan.index
        busy: dict[Connection, _Worker] = {}

        def feed(which: int) -> None:
            """Send a worker its next request. A client always has the same worker."""
            queue, worker = queues[which], self._workers[which]
            while not queue:
                item = next(requests, None)
                if item is None:
                    return
                queues[place[item[0]] % len(self._workers)].append(item)
            worker.ask(stage, *queue.popleft())
            busy[worker.pipe] = worker

        for which in range(len(self._workers)):
            feed(which)
        while busy:
            for pipe in wait(list(busy)):
                worker = busy.pop(pipe)  # type: ignore[call-overload]
                answer = worker.take()
                feed(self._workers.index(worker))  # the worker continues while the server handles this answer
                yield answer

    def close(self) -> None:
        while self._workers:
            self._workers.pop().close()


_REQUEST = struct.Struct("<BIBB")  # stage, client, slot, and one of:
_HELLO, _NEW, _SAME = range(3)  # no message; a message follows; the same message as before
_ANSWER = struct.Struct("<BIBId")  # kind, client, slot, vectors in the slot, seconds of CPU time
_NO_REPLY, _RAW, _MESSAGE, _USAGE_ERROR, _FAILURE = range(5)


class SharedVectors:
    """Memory for a few clients' vectors of this shape that a process shares with those that it forks."""

    def __init__(self, shape: tuple[int, int], slots: int) -> None:
        self._shape, self._size = shape, shape[0] * shape[1]
        self._memory = mmap.mmap(-1, slots * 4 * self._size)

    def __call__(self, slot: int) -> Ring32:
        return np.frombuffer(self._memory, np.uint32, self._size, slot * 4 * self._size).reshape(self._shape)


class _Worker:
    """One forked process and the parent's end of its pipe."""

    _SLOTS = 2  # one being filled, one being read

    def __init__(self, scenario: Scenario, older: Sequence[_Worker]) -> None:
        self._vectors = SharedVectors((len(scenario.plan.groupings), scenario.plan.length), self._SLOTS)
        self._slot = 0
        self._last: ToClient | None = None
        self._size = 0  # of the last message
        self.pipe, theirs = Pipe()
        self._child = fork()
        if self._child == 0:
            try:
                for worker in (*older, self):
                    worker.pipe.close()  # otherwise the older workers never see the end of their input
                _serve(scenario, theirs, self._vectors)
            finally:
                os._exit(0)  # skip the parent's clean-up in the child
        theirs.close()

    def ask(self, stage: Stage, client: ClientId, message: ToClient | None) -> None:
        """Request a client's answer to a message. Take the answer before the next request."""
        self._slot = (self._slot + 1) % self._SLOTS
        body, follows = b"", _HELLO if message is None else _SAME
        if message is not self._last:
            self._last, body = message, b"" if message is None else wire.encode(message)
            self._size, follows = len(body), _HELLO if message is None else _NEW
        self.pipe.send_bytes(_REQUEST.pack(stage, client, self._slot, follows) + body)

    def take(self) -> Answer:
        try:
            frame = self.pipe.recv_bytes()
        except EOFError:
            raise RuntimeError("a worker process died") from None
        kind, client, slot, count, seconds = _ANSWER.unpack_from(frame)
        body = frame[_ANSWER.size :]
        if kind == _USAGE_ERROR:
            raise UsageError(body.decode())
        if kind == _FAILURE:
            raise RuntimeError(f"client {client} failed in a worker process:\n{body.decode()}")
        reply: Any = None
        if kind == _RAW:
            reply = body
        elif kind == _MESSAGE:
            reply = wire.decode(body)
            if isinstance(reply, MaskedInput) and count:
                reply = replace(reply, vectors=self._vectors(slot)[:count])
        return Answer(client, reply, seconds, self._size)

    def close(self) -> None:
        self.pipe.close()  # the worker sees the end of its input and exits
        os.waitpid(self._child, 0)


def fork() -> int:
    """os.fork without the warning of Python 3.12 and later that this process has other threads.

    A lock that another thread holds during the fork stays locked in the child. So fork while no other thread
    is inside secagg, numba or an import. The threads of `secagg.kernels.threads` only wait between its calls.
    If you cannot guarantee this, use one process, which is the default.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        return os.fork()


def _serve(scenario: Scenario, pipe: Connection, vectors: Callable[[int], Ring32]) -> None:
    """The main loop of a worker: answer for its clients until the pipe closes."""
    clients: dict[ClientId, Client] = {}
    message: Any = None
    while True:
        try:
            frame = pipe.recv_bytes()
        except EOFError:
            return
        stage, client, slot, follows = _REQUEST.unpack_from(frame)
        start = time.process_time()
        count, body, seconds = 0, b"", 0.0
        try:
            if follows != _SAME:  # a message to all clients is decoded once per process
                message = wire.decode(memoryview(frame)[_REQUEST.size :]) if follows == _NEW else None
            if client not in clients:
                clients[client] = scenario.make(client)
            memory = vectors(slot)
            reply = scenario.answer(clients[client], Stage(stage), message, memory)
            seconds = time.process_time() - start
            kind = _NO_REPLY if reply is None else _RAW if isinstance(reply, bytes) else _MESSAGE
            if isinstance(reply, MaskedInput) and reply.vectors.shape[1:] == (scenario.plan.length,):
                count = len(reply.vectors)
                if client in scenario.tamper:  # tampered vectors may not be in shared memory: copy
                    memory[:count] = np.array(reply.vectors)
                reply = replace(reply, vectors=np.empty((0, 0), np.uint32))
            if reply is not None:
                body = reply if isinstance(reply, bytes) else wire.encode(reply)
        except UsageError as error:
            kind, body = _USAGE_ERROR, str(error).encode()
        except Exception:  # of the caller's functions, or a bug: the parent raises it with the traceback
            kind, body = _FAILURE, traceback.format_exc().encode()
        pipe.send_bytes(_ANSWER.pack(kind, client, slot, count, seconds) + body)


Clients = ForkedClients | InProcessClients


def start_clients(scenario: Scenario, processes: int) -> Clients:
    """Clients in forked processes, or in this one if `processes` is 1 or the system cannot fork."""
    if processes > 1 and hasattr(os, "fork"):
        return ForkedClients(scenario, processes)
    return InProcessClients(scenario)
