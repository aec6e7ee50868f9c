"""Whole groups: a group is summed with all its members or not at all, in one exchange per round.

An `Agreement` that all members signed says who is summed with whom in every round. A `Client` masks its update in each
group with every mate; a `Server` adds up the groups whose members all answered. Nothing has to be recovered, so there
are no shares and no threshold. `secagg.simulation.run_whole` runs a round in one process.
"""

from secagg.protocol.result import GroupSum
from secagg.whole.client import Client
from secagg.whole.client_state import Pending, Resend, State, Task
from secagg.whole.messages import Advert, Answer, Hello, Message, Release, Round, ToClient, ToServer, decode, encode
from secagg.whole.recall import recall
from secagg.whole.result import WholeResult
from secagg.whole.server import Server
from secagg.whole.server_state import Stage
from secagg.whole.store import FileStore, MemoryStore, SlotStore, Store, enrol, respond

__all__ = ["Client", "GroupSum", "Pending", "Resend", "Server", "Stage", "State", "Task", "WholeResult"]
__all__ += ["Advert", "Answer", "Hello", "Message", "Release", "Round", "ToClient", "ToServer", "decode", "encode"]
__all__ += ["FileStore", "MemoryStore", "SlotStore", "Store", "enrol", "recall", "respond"]
