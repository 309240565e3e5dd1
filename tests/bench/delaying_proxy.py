"""Passes bytes between two unix sockets, late: a server that is far away. Ends with its standard input.

    delaying_proxy.py LISTEN SERVER --round-trip-ms 10
"""
import argparse
import asyncio
import sys


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Each piece so long after it came, and none for the one before."""
    loop = asyncio.get_running_loop()
    late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        while piece := await reader.read(1 << 16):
            late.put_nowait((loop.time() + seconds, piece))
        late.put_nowait((loop.time() + seconds, b""))

    reading = asyncio.create_task(read())
    try:
        while True:
            due, piece = await late.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
    except OSError:  # one of the two has gone
        pass
    finally:
        reading.cancel()
        writer.close()


async def serve(arguments: argparse.Namespace) -> None:
    seconds = arguments.round_trip_ms / 2e3
    running = set()  # asyncio itself holds no task

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(arguments.server)
        for task in (pass_on(reader, there[1], seconds), pass_on(there[0], writer, seconds)):
            running.add(asyncio.ensure_future(task))

    await asyncio.start_unix_server(connect, arguments.listen)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("listen", help="a path to make")
    parser.add_argument("server", help="the server's path")
    parser.add_argument("--round-trip-ms", type=float, required=True)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
