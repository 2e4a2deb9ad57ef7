// Package deb makes the Debian package of the gateway and tests it; no code of the gateway is here.
//
//	build.sh ARCH VERSION OUTDIR
//	   │ go build ./cmd/gateway         static binary of that architecture
//	   │ licences of the linked modules, manual page, compressed
//	   ▼ nfpm.yaml                      what lies where, and who owns it
//	edge-gateway_VERSION-1_ARCH.deb
//	   │ scripts/postinst               user, permissions, unit enabled and started
//	   │ edge-gateway.service           sandbox, watchdog, restarts (docs/adr/0008-start-limit.md)
//	   ▼ gateway.yaml                   /etc/edge-gateway/gateway.yaml, a conffile
//	deb_test.go                         builds, installs in a clean root, runs, upgrades, removes, purges
//
// The folder nfpm holds the module file of the packaging tool, so that its modules stay out of the product's go.mod.
package deb
