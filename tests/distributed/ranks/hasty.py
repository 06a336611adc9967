"""A rank whose driver ends it as soon as it has told of its error: see ``test_users_errors``."""

import os
import sys

from measurement.agent.ringside_agent.agent import Agent
from runners.rank.worker import serve

RAISED = {"error": OSError("sample 60 is damaged"), "exit": SystemExit("no licence")}


class Channel:
    """Of a driver that asks it to start."""

    outstanding = 0

    def receive(self):
        return b'{"do": "start"}'

    def reply(self, text):
        os._exit(9)


def start(command):
    raise RAISED[sys.argv[1]]


if __name__ == "__main__":
    serve(Agent(Channel()), {"start": start})
