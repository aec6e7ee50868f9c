"""Answers of simulated clients of whole groups: in this process, or in processes that are forked for one round.

A forked process has a copy of every client. It sends each answer with the client's new state, so that this process goes
on with it in the next round. Messages cross as bytes, vectors through shared memory. Nothing is pickled.
"""

from __future__ import annotations

import os
import struct
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import Final

import numpy as np

from secagg.crypto import hashing, prg
from secagg.errors import UsageError
from secagg.simulation.clients import SharedVectors, fork
from secagg.types import ClientId, Ring32
from secagg.whole.messages import NO_VECTORS, Answer, Round, decode, encode

Reply = Answer | bytes | None
Requests = Sequence[tuple[ClientId, Round]]
Respond = Callable[[ClientId, Round, Ring32], Reply]
Save = Callable[[ClientId], bytes]

_SLOTS: Final = 2  # one being filled, one being read
_FRAME: Final = struct.Struct("<BIBIdI")  # kind, client, slot, rows in the slot, seconds of CPU time, bytes of state
_NO_REPLY, _RAW, _ANSWER, _USAGE_ERROR, _FAILURE = range(5)


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """One client's reply to one message, its CPU time, and its new state if it lives in another process."""

    client: ClientId
    message: Round
    reply: Reply
    seconds: float
    state: bytes = b""


def in_process(requests: Requests, respond: Respond, shape: tuple[int, int]) -> Iterator[Answered]:
    """One client after the other. Their vectors, of this shape, are made in the same memory: use each at once."""
    vectors = np.empty(shape, np.uint32)
    for client, message in requests:
        start = time.process_time()
        reply = respond(client, message, vectors)
        yield Answered(client, message, reply, time.process_time() - start)


def forked(
    requests: Requests, respond: Respond, save: Save, shape: tuple[int, int], processes: int
) -> Iterator[Answered]:
    """The clients divided among processes; each keeps at most two clients' vectors, of this shape, in memory."""
    hashing.has_kernel()
    prg.backend()
    workers: list[_Worker] = []
    try:
        for which in range(min(processes, len(requests))):
            workers.append(_Worker(requests[which::processes], respond, save, shape, workers))
        while busy := {worker.pipe: worker for worker in workers if worker.left}:
            for pipe in wait(list(busy)):
                yield busy[pipe].take()  # type: ignore[index]
                busy[pipe].free()  # type: ignore[index]
    finally:
        while workers:
            workers.pop().close()


class _Worker:
    """One forked process and this process's end of its pipe."""

    def __init__(
        self, requests: Requests, respond: Respond, save: Save, shape: tuple[int, int], older: Sequence[_Worker]
    ) -> None:
        self._vectors, self._messages = SharedVectors(shape, _SLOTS), dict(requests)
        self.left = len(requests)
        self.pipe, theirs = Pipe()
        self._child = fork()
        if self._child == 0:
            try:
                for worker in (*older, self):
                    worker.pipe.close()  # otherwise the older workers never see the end of their input
                _serve(requests, respond, save, theirs, self._vectors)
            finally:
                os._exit(0)  # skip the parent's clean-up in the child
        theirs.close()

    def take(self) -> Answered:
        """The next answer. Its vectors stay as they are until `free` is called."""
        try:
            frame = self.pipe.recv_bytes()
        except EOFError:
            raise RuntimeError("a worker process died") from None
        self.left -= 1
        kind, client, slot, rows, seconds, length = _FRAME.unpack_from(frame)
        state, body = frame[_FRAME.size :][:length], frame[_FRAME.size + length :]
        if kind == _USAGE_ERROR:
            raise UsageError(body.decode())
        if kind == _FAILURE:
            raise RuntimeError(f"client {client} failed in a worker process:\n{body.decode()}")
        reply: Reply = body if kind == _RAW else None
        if kind == _ANSWER:
            answer = decode(body)
            assert isinstance(answer, Answer)
            reply = replace(answer, vectors=self._vectors(slot)[:rows])
        return Answered(client, self._messages[client], reply, seconds, state)

    def free(self) -> None:
        """The worker may use the memory of the answer that was taken last."""
        if self.left >= _SLOTS:  # otherwise the worker does not wait for it, and may have ended
            self.pipe.send_bytes(b"free")

    def close(self) -> None:
        self.pipe.close()  # the worker sees the end of its input and exits
        os.waitpid(self._child, 0)


def _serve(
    requests: Requests, respond: Respond, save: Save, pipe: Connection, vectors: Callable[[int], Ring32]
) -> None:
    """The main loop of a worker: one answer after the other, at most two ahead of the parent."""
    for number, (client, message) in enumerate(requests):
        slot, rows, state, body = number % _SLOTS, 0, b"", b""
        if number >= _SLOTS:
            pipe.recv_bytes()
        start = time.process_time()
        try:
            reply = respond(client, message, vectors(slot))
            seconds, state = time.process_time() - start, save(client)
            kind = _NO_REPLY if reply is None else _RAW if isinstance(reply, bytes) else _ANSWER
            if isinstance(reply, Answer):
                rows, body = len(reply.vectors), encode(replace(reply, vectors=NO_VECTORS))
            elif reply is not None:
                body = reply
        except UsageError as error:
            kind, seconds, body = _USAGE_ERROR, 0.0, str(error).encode()
        except Exception:  # of the caller's functions, or a bug: the parent raises it with the traceback
            kind, seconds, body = _FAILURE, 0.0, traceback.format_exc().encode()
        pipe.send_bytes(_FRAME.pack(kind, client, slot, rows, seconds, len(state)) + state + body)
