"""What a training worker process runs. `fl.training.workers` starts it and describes how both sides work."""

from __future__ import annotations

import os
import select
import socket
import threading
import traceback

import numpy as np
import torch

from fl.errors import TrainingError
from fl.training.learner import Learner
from fl.training.shared import Message, Shared, receive, send, unpack


def serve(descriptor: int, parent: int) -> None:
    """Answer requests until the parent closes the socket."""
    channel = socket.socket(fileno=descriptor)
    threading.Thread(target=_watch, args=(channel, parent), daemon=True).start()
    torch.set_num_threads(1)
    learner: Learner | None = None
    while True:
        message, files = receive(channel)
        if message is None:
            return
        shared = [Shared(*shape, file=file) for shape, file in zip(message["shapes"], files, strict=True)]
        try:
            if message["do"] == "setup":
                learner = Learner(unpack(message, shared[0]))
                reply: Message = {}
            else:
                assert learner is not None
                reply = _answer(learner, message, shared)
        except TrainingError as error:
            reply = {"error": str(error)}
        except Exception as error:
            place = traceback.format_exception(error)[-1].strip()
            reply = {"error": f"{message['do']}: {place}"}
        del shared
        send(channel, reply)


def _answer(learner: Learner, message: Message, shared: list[Shared]) -> Message:
    start = shared[0].matrix
    index = None if message.get("index") is None else np.array(message["index"], dtype=np.int64)
    match message["do"]:
        case "train":
            rows = shared[1].matrix
            for row, client in zip(message["rows"], message["clients"], strict=True):
                learner.train(start[0], [client], round_index=message["round"], out=rows[row : row + 1])
            return {}
        case "scores":
            scores = learner.batch_scores(start[0], message["part"], message["first"], message["last"])
            return {"scores": scores}
        case "losses":
            at = shared[1].matrix[0] if len(shared) > 1 else None
            row = message["row"]
            return {"loss": float(learner.losses(start[row : row + 1], index, at=at)[0])}
        case "gradient":
            shared[1].matrix[0] = learner.gradient(start[0], index)
            return {}
        case other:
            raise ValueError(f"unknown request {other!r}")


def _watch(channel: socket.socket, parent: int) -> None:
    """End this process when the parent has ended, whatever the main thread is doing.

    The closed socket alone would be enough if no other process could hold a copy of the parent's end.
    """
    poll = select.poll()
    poll.register(channel, 0)
    while os.getppid() == parent and not poll.poll(1000):
        pass
    os._exit(0)
