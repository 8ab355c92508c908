"""The stand-in for `python`: runs isolated, without this package.

Options that the server does not know lead to the real interpreter.
"""

import itertools
import json
import os
import signal
import socket
import sys


def is_inheritable(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # the descriptor of the listing itself
        return False


leading = itertools.takewhile(lambda word: word.startswith("-") and word not in {"-m", "-c"}, sys.argv[1:])
if not {"-u", "-P"}.issuperset(leading) and sys.argv[1:3] != ["-W", "error"]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect(os.path.join(os.path.dirname(__file__), "socket"))
for caught in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(caught) is not signal.SIG_IGN:
        signal.signal(caught, lambda number, _frame: server.sendall(bytes([number])))
files = [number for number in map(int, os.listdir("/proc/self/fd")) if is_inheritable(number)]
request = {"words": sys.argv[1:], "environ": dict(os.environ), "folder": os.getcwd(), "files": files}
text = json.dumps(request).encode()
socket.send_fds(server, [b"%10d" % len(text)], files)
server.sendall(text)
for number in files:
    os.close(number)  # so that a reader sees the end of a pipe when the process ends
status = int(server.makefile().readline())
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
