"""An MQTT client made of paho-mqtt that publishes numbered messages and writes down what it did.

Usage: client.py PORT USER PASSWORD ID QOS VERSION WINDOW RATE LEDGER STOPFILE

The ledger has a line "s N" before each time number N may be sent, also again after a reconnect, and "a N" when N was
acknowledged: PUBACK for QoS 1, PUBCOMP for QoS 2. When the stop file appears the client sends nothing new, waits until
everything is acknowledged, and ends. One thread does everything, so nothing overtakes anything.
"""

import os
import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

port, user, password, name, qos, version, window, rate, ledger_file, stop_file = sys.argv[1:]
qos, window, rate = int(qos), int(window), float(rate)
ledger = os.open(ledger_file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
pending = {}  # number by packet id, in the order of sending
connected = False


def note(*lines):
    os.write(ledger, "".join(line + "\n" for line in lines).encode())


class Client(mqtt.Client):
    """paho forgets that a PUBREL is due, and sends the message anew, when a second connection fails before its CONNACK."""

    def _messages_reconnect_reset_out(self):
        for m in self._out_messages.values():
            if m.state == mqtt.mqtt_ms_resend_pubrel:
                m.state = mqtt.mqtt_ms_wait_for_pubcomp
        super()._messages_reconnect_reset_out()


def on_connect(_client, _data, _flags, reason, _props):
    global connected
    if reason.is_failure:
        sys.exit(f"sign-in refused: {reason}")
    connected = True
    if pending:
        note(*(f"s {n}" for n in pending.values()))  # paho is about to send them again


def on_disconnect(*_):
    global connected
    connected = False


def on_publish(_client, _data, mid, reason, _props):
    n = pending.pop(mid)
    # A repeated PUBREL may find the packet id released already: the message is stored (MQTT 5, section 4.3.3).
    if reason.is_failure and not (qos == 2 and reason.getName() == "Packet identifier not found"):
        sys.exit(f"{name}: message {n} refused: {reason}")
    note(f"a {n}")


v5 = version == "5"
if v5:
    client = Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
else:
    client = Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv311, clean_session=False)
client.username_pw_set(user, password)
client.max_inflight_messages_set(0)
client.on_connect, client.on_disconnect, client.on_publish = on_connect, on_disconnect, on_publish
settings = {}
if v5:
    props = Properties(PacketTypes.CONNECT)
    props.SessionExpiryInterval = 3600
    settings = {"clean_start": False, "properties": props}
client.connect_async("127.0.0.1", int(port), keepalive=10, **settings)

pad = "x" * 80
began, sent = time.monotonic(), 0
while True:
    if client.socket() is None:
        connected = False
        try:
            client.reconnect()
        except OSError:
            time.sleep(0.05)
            continue
    if client.loop(0.01) != mqtt.MQTT_ERR_SUCCESS:
        time.sleep(0.02)
        continue
    stopping = os.path.exists(stop_file)
    if stopping and not pending:
        break
    while connected and not stopping and len(pending) < window and sent < (time.monotonic() - began) * rate:
        sent += 1
        note(f"s {sent}")
        info = client.publish(f"line/{name}", f'{{"c":"{name}","n":{sent},"pad":"{pad}"}}', qos=qos)
        pending[info.mid] = sent
        if info.rc != mqtt.MQTT_ERR_SUCCESS:
            break
client.disconnect()
