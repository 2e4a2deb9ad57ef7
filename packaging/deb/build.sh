#!/bin/sh
# Builds the Debian package; two builds of one commit are equal, byte for byte.
#
#   packaging/deb/build.sh ARCH VERSION OUTDIR     ARCH: amd64, arm64 or armhf
#
# Needs Go and gzip only. SOURCE_DATE_EPOCH is the time of the last commit unless it is set. The last line is the package's path.
set -eu

usage() { echo "usage: build.sh amd64|arm64|armhf VERSION OUTDIR" >&2; exit 2; }
[ $# = 3 ] || usage

DEB_ARCH=$1 DEB_VERSION=$2
case $DEB_ARCH in
  amd64 | arm64) GOARCH=$DEB_ARCH ;;
  # Raspberry Pi OS says armhf for ARM v6 too, where a program for v7 dies at its first instruction.
  armhf) GOARCH=arm GOARM=6 && export GOARM ;;
  *) usage ;;
esac
case $DEB_VERSION in
  [0-9]*) ;;
  *) echo "build.sh: $DEB_VERSION is no Debian version (want a digit first, such as 0.1.0)" >&2; exit 2 ;;
esac
mkdir -p "$3"
out=$(cd "$3" && pwd)
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
maintainer=$(sed -n 's/^maintainer: //p' nfpm.yaml)

if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  # Outside a repository there is no commit; the newest release note is a date that all builds agree on.
  SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct 2>/dev/null ||
    date -u -d "$(sed -n 's/^ -- .*>  //p' changelog | head -n 1)" +%s)
fi
DEB_STAGE=$(mktemp -d)
trap 'rm -rf "$DEB_STAGE"' EXIT
export DEB_ARCH DEB_VERSION DEB_STAGE SOURCE_DATE_EPOCH

# The tool runs here, so it is asked for before GOARCH is another machine's.
nfpm=$(go tool -modfile=nfpm/go.mod -n nfpm)

export CGO_ENABLED=0 GOOS=linux GOARCH GOFLAGS="-trimpath -buildvcs=false"
# shellcheck disable=SC2086 # DEB_TAGS is a list, such as "no_kafka no_redis"
go build -C "$root" -tags "${DEB_TAGS:-}" -ldflags "-s -w -buildid= -X main.buildVersion=$DEB_VERSION" \
  -o "$DEB_STAGE/edge-gateway" ./cmd/gateway

# Whoever passes the binary on passes these on: the licence of each module in it.
go list -C "$root" -tags "${DEB_TAGS:-}" -deps -f '{{with .Module}}{{if .Dir}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/gateway |
  sort -u | while read -r module version dir; do
    [ -n "$dir" ] || continue # the gateway itself has no version
    printf '==== %s %s\n\n' "$module" "$version"
    find "$dir" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort | while read -r file; do
      cat "$file" && echo
    done
  done | gzip -9n >"$DEB_STAGE/modules.gz"

gzip -9nc edge-gateway.1 >"$DEB_STAGE/edge-gateway.1.gz"
{
  if ! grep -qF "edge-gateway ($DEB_VERSION-1)" changelog; then
    printf 'edge-gateway (%s-1) stable; urgency=medium\n\n  * Build between releases.\n\n -- %s  %s\n\n' \
      "$DEB_VERSION" "$maintainer" "$(date -u -d "@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S +0000')"
  fi
  cat changelog
} | gzip -9n >"$DEB_STAGE/changelog.gz"

"$nfpm" package --config nfpm.yaml --packager deb --target "$out/" >&2
echo "$out/edge-gateway_$DEB_VERSION-1_$DEB_ARCH.deb"
