"""Runs a program on a terminal until its screen shows what is looked for, and writes that: screen.py PATTERN COMMAND...

What the groups of the pattern found, with a space between; the whole screen and status 1 after a minute without it.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

import pyte

COLUMNS, LINES = 160, 50

child, terminal = pty.fork()
if child == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    os.environ.update(TERM="xterm-256color", LANG="C.UTF-8")
    os.execvp(sys.argv[2], sys.argv[2:])
screen = pyte.Screen(COLUMNS, LINES)
stream = pyte.ByteStream(screen)
deadline = time.monotonic() + 60
found = None
while not found and select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
    try:
        stream.feed(os.read(terminal, 1 << 16))
    except OSError:  # it has ended
        break
    found = re.search(sys.argv[1], "\n".join(screen.display))
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
if not found:
    print("\n".join(line.rstrip() for line in screen.display))
    sys.exit(1)
print(*found.groups())
