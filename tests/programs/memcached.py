"""Loads memcached over a Unix socket from four threads and verifies every value: python3 memcached.py SOCKET COUNT"""

import random
import socket
import sys
import threading

PATH, COUNT = sys.argv[1], int(sys.argv[2])
THREADS = 4


def value_of(key, version):
    """Reproducible, of up to 2 KiB; now and then up to a MiB, which memcached keeps in several pieces."""
    seeded = random.Random(f"{key}/{version}")
    length = seeded.randrange(1 << 20) if seeded.randrange(500) == 0 else seeded.randrange(2048)
    return (f"{key}/{version};".encode() * (length // 8 + 1))[:length]


class Client:
    def __init__(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(PATH)
        self.file = connection.makefile("rwb")

    def ask(self, request):
        self.file.write(request)
        self.file.flush()
        return self.file.readline()

    def set(self, key, value):
        answer = self.ask(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(value), value))
        assert answer == b"STORED\r\n", answer

    def get(self, key):
        answer = self.ask(b"get %s\r\n" % key.encode())
        if answer == b"END\r\n":
            return None
        length = int(answer.split()[3])
        value = self.file.read(length + 2)[:-2]
        assert self.file.readline() == b"END\r\n"
        return value


def load(thread, problems, found):
    try:
        client, versions, chosen = Client(), {}, random.Random(thread)
        for turn in range(COUNT // THREADS):
            key = f"{thread}:{chosen.randrange(COUNT // 8)}"
            if chosen.randrange(10) == 0 and key in versions:
                client.ask(b"delete %s\r\n" % key.encode())
                del versions[key]
            else:
                versions[key] = turn
                client.set(key, value_of(key, turn))
        for key, version in versions.items():
            # Memory is limited: what was pushed out is no error, a wrong value is.
            value = client.get(key)
            found[thread] += value is not None
            assert value is None or value == value_of(key, version), key
        assert found[thread] * 2 > len(versions), "most are gone"
    except BaseException as problem:
        problems.append(f"thread {thread}: {problem!r}")


problems, found = [], [0] * THREADS
threads = [threading.Thread(target=load, args=(thread, problems, found)) for thread in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("\n".join(problems) or f"{sum(found)} values are right")
sys.exit(bool(problems))
