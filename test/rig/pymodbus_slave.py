"""A Modbus TCP server made of pymodbus only, for the tests: encoding, framing and exceptions are none of ours.

Reads one JSON object from standard input, prints "ready" when it listens, and serves until it is killed:
{"port": 502, "units": {"1": [{"table": "holding", "address": 0, "type": "int16", "value": -13, "order": "ABCD"}]}}
"""

import asyncio
import json
import sys

from pymodbus.client.mixin import ModbusClientMixin
from pymodbus.datastore import ModbusDeviceContext, ModbusServerContext, ModbusSparseDataBlock
from pymodbus.server import ModbusTcpServer

TABLES = {"holding": "hr", "input": "ir", "coil": "co", "discrete": "di"}


def registers(item):
    """Encode a value with pymodbus' own converter; it knows two word orders, the byte swap is done here."""
    kind, order = item["type"], item.get("order") or "ABCD"
    if kind in ("bool", "uint16") and isinstance(item["value"], (bool, list)):
        return [int(v) for v in (item["value"] if isinstance(item["value"], list) else [item["value"]])]
    data_type = getattr(ModbusClientMixin.DATATYPE, kind.upper())
    word_order = "little" if order in ("CDAB", "DCBA") and kind != "string" else "big"
    regs = ModbusClientMixin.convert_to_registers(item["value"], data_type, word_order=word_order)
    if order in ("BADC", "DCBA"):
        regs = [(r & 0xFF) << 8 | r >> 8 for r in regs]
    return regs


def unit(items):
    """Make one unit whose tables hold exactly the given items: every other address is refused with exception 2."""
    cells = {"hr": {}, "ir": {}, "co": {}, "di": {}}
    for item in items:
        for i, reg in enumerate(registers(item)):
            cells[TABLES[item["table"]]][item["address"] + i] = reg
    return ModbusDeviceContext(**{name: ModbusSparseDataBlock(c) for name, c in cells.items() if c})


async def main():
    config = json.load(sys.stdin)
    units = {int(number): unit(items) for number, items in config["units"].items()}
    context = ModbusServerContext(devices=units, single=False)
    server = ModbusTcpServer(context, address=("127.0.0.1", config["port"]))
    await server.serve_forever(background=True)
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
