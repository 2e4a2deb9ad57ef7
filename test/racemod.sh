#!/bin/sh
# Writes build/race.mod, with which the tests are built where the race detector looks on: go.mod with a copy of pulsar-client-go 0.19.0
# without its two races with itself (docs/adr/0015-pulsar-exactly-once.md). What is shipped has the library as it is.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go}
library=github.com/apache/pulsar-client-go
$GO mod download $library
from=$($GO list -m -f '{{.Dir}}' $library)
copy=${EDGE_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/edge-gateway-test}/race2-$(basename "$from")
producer=pulsar/producer_partition.go
connection=pulsar/internal/connection.go
if [ ! -d "$copy" ]; then
	new=$copy.$$
	mkdir -p "$new"
	cp -R "$from/." "$new"
	chmod -R u+w "$new"
	# The logger gets no more fields once the connection knows the producer.
	sed '/^\tp\.log = p\.log\.SubLogger(log\.Fields{$/,/^\t})$/d' "$from/$producer" >"$new/$producer"
	# A lock for the WaitGroup that is added to while somebody waits.
	sed 's/\(incomingRequestsWG *\) sync\.WaitGroup/\1 sync.RWMutex/
		s/incomingRequestsWG\.Add(1)/incomingRequestsWG.RLock()/
		s/incomingRequestsWG\.Done()/incomingRequestsWG.RUnlock()/
		s/c\.incomingRequestsWG\.Wait()/c.incomingRequestsWG.Lock()\
	c.incomingRequestsWG.Unlock()/' "$from/$connection" >"$new/$connection"
	mv "$new" "$copy"
fi
changed() { diff "$from/$1" "$copy/$1" | grep -c '^[<>]'; }
if [ "$(changed $producer)" != 4 ] || [ "$(changed $connection)" != 13 ]; then
	echo "$from is another version: are the races still there? (want this script made for it, or removed)" >&2
	exit 1
fi
mkdir -p build
cp go.mod build/race.mod
cp go.sum build/race.sum
$GO mod edit -replace "$library=$copy" build/race.mod
