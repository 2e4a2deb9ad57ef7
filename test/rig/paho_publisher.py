"""Publishes numbered messages with paho-mqtt and prints each number when the broker has acknowledged it.

The settings are one JSON object on the first line of standard input. It connects again by itself, sends again what was
not acknowledged, and ends when all are acknowledged or standard input is closed.
"""

import json
import queue
import sys
import threading
import time

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

o = json.loads(sys.stdin.readline())
v5 = o["version"] == 5
acked = queue.Queue()
closed = threading.Event()


def watch_stdin():
    sys.stdin.read()
    closed.set()


def on_publish(client, userdata, mid, reason, properties):
    acked.put((mid, not (v5 and reason.is_failure)))


def on_connect(client, userdata, flags, reason, properties):
    print("connected" if not reason.is_failure else f"refused {reason}", flush=True)


kwargs = {} if v5 else {"clean_session": not o["keep"]}
c = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=o["id"], protocol=mqtt.MQTTv5 if v5 else mqtt.MQTTv311, **kwargs)
c.username_pw_set(o["user"], o["password"])
c.max_inflight_messages_set(o["window"])
c.max_queued_messages_set(0)
c.reconnect_delay_set(1, 1)
c.on_publish, c.on_connect = on_publish, on_connect
start = {}
if v5:
    props = Properties(PacketTypes.CONNECT)
    props.SessionExpiryInterval = 3600 if o["keep"] else 0
    start = {"clean_start": not o["keep"], "properties": props}
c.connect_async(o["host"], o["port"], keepalive=30, **start)
c.loop_start()
threading.Thread(target=watch_stdin, daemon=True).start()

number, sent = {}, 0
waiting = 0
while not closed.is_set() and (waiting or sent < o["count"]):
    while sent < o["count"] and waiting < o["window"] and c.is_connected():
        info = c.publish(o["topic"], f"{o['prefix']}{sent}", qos=o["qos"])
        number[info.mid] = sent
        sent, waiting = sent + 1, waiting + 1
        if o["pause"]:
            time.sleep(o["pause"])
            break
    try:
        mid, good = acked.get(timeout=0.05)
    except queue.Empty:
        continue
    waiting -= 1
    n = number.pop(mid)
    if good:
        print(n, flush=True)
c.disconnect()
c.loop_stop()
