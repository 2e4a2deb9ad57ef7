"""A Modbus TCP slave made of pymodbus whose registers tell when they were read: two units, 12 holding registers each.

0..3 milliseconds since 1970, 4..7 their complement, 8..11 a number that grows with each request, also over restarts.
Usage: slave.py PORT
"""

import asyncio
import functools
import sys
import time

from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

MASK = (1 << 64) - 1
last = {1: 0, 2: 0}


async def refresh(unit, _function, start, _address, _count, registers, _values):
    now = time.time_ns() // 1_000_000
    last[unit] = max(last[unit] + 1, now)
    for place, value in ((0, now), (4, now ^ MASK), (8, last[unit])):
        for i in range(4):
            registers[place - start + i] = value >> (48 - 16 * i) & 0xFFFF


async def main():
    def unit(number):
        data = [SimData(0, values=[0] * 12, datatype=DataType.REGISTERS)]
        return SimDevice(number, simdata=data, action=functools.partial(refresh, number))

    server = ModbusTcpServer([unit(1), unit(2)], address=("127.0.0.1", int(sys.argv[1])))
    await server.serve_forever()


asyncio.run(main())
