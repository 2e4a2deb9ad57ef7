# Edge Gateway. `make run` shows it at work, `make test` passes everything; both set up what they need.

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0)
LDFLAGS  := -s -w -X main.buildVersion=$(VERSION)
LINT     := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
TARGETS  := linux/amd64 linux/arm64 linux/arm/7 linux/riscv64 linux/mipsle/softfloat
FUZZTIME ?= 10s
POINTS   ?= 100000
ARM_POINTS ?= 2000
BLOCKS   ?= 1000
KILLS    ?= 12
BROKER_KILLS ?= 3
DEVICE   ?= loop
RAM      := $(firstword $(wildcard /dev/shm) /tmp)
DRIVERS  ?= kafka nats pulsar redis
UPLINKS   = $(patsubst %,./uplink/%,$(DRIVERS))
export CGO_ENABLED ?= 1

.PHONY: help run build test race lint bench bench-wal soak fuzz deb fmt cross setup e2e e2e-control powercut powercut-control powercut-arm powercut-arm64 salvage \
	powercut-block powercut-block-control damage faults conformance kill-uplinks kill-brokers bench-uplinks bench-kafka size

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The same flags for both, so that what they share is compiled once: the first run should not take longer than it must.
run: build ## the gateway with a small plant and a far broker, all in one terminal
	@cd test/plant && CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o ../../build/plant .
	@exec build/plant run build/edge-gateway

build: ## build/edge-gateway for this machine
	@mkdir -p build
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o build/edge-gateway ./cmd/gateway

setup: ## install the brokers, clients and the browser that the tests run against
	@test/setup.sh

test: setup ## all tests, with the race detector, against the real brokers
	$(GO) vet ./...
	GO=$(GO) test/racemod.sh # for the race detector: Pulsar's library without its two races with itself (docs/adr/0015-pulsar-exactly-once.md)
	$(GO) test -race -modfile build/race.mod -timeout 60m ./...
	$(MAKE) powercut powercut-control powercut-arm powercut-arm64 damage faults
	cd test/plant && $(GO) vet ./... && $(GO) test -timeout 10m ./...
	cd test/browser && $(GO) vet ./... && $(GO) test -timeout 10m ./...
	cd test/benchwal && $(GO) vet ./... && $(GO) test -timeout 10m ./...
	cd test/blockcut && $(GO) vet ./... && $(GO) test -timeout 10m ./...

race: setup ## all tests of the main module again, in another order
	GO=$(GO) test/racemod.sh
	$(GO) test -race -modfile build/race.mod -shuffle=on -count=1 -timeout 60m ./...

lint: ## linters and formatting
	$(GO) mod tidy -diff
	$(GO) run $(LINT) run ./...

fmt: ## format everything
	$(GO) run $(LINT) fmt ./...

cross: ## build for every architecture
	@for target in $(TARGETS); do \
		IFS=/ read -r os arch variant <<<"$$target"; \
		echo "build $$target"; \
		case $$arch in arm) knob=GOARM=$$variant ;; mips*) knob=GOMIPS=$$variant ;; *) knob= ;; esac; \
		env CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $$knob \
			$(GO) build -trimpath -ldflags "$(LDFLAGS)" -o build/edge-gateway-$${target//\//-} ./cmd/gateway || exit 1; \
	done

e2e: setup ## the whole path under kills; the last line is the figure
	@rm -f build/e2e.txt && mkdir -p build
	E2E_RESULT=$(CURDIR)/build/e2e.txt $(GO) test -count=1 -timeout 30m -run 'TestEndToEnd$$' ./test/e2e
	@cat build/e2e.txt

e2e-control: setup ## the same with acknowledgements before the commit: it must find losses
	@rm -f build/e2e-control.txt && mkdir -p build
	E2E_RESULT=$(CURDIR)/build/e2e-control.txt $(GO) test -count=1 -timeout 30m -run 'TestEndToEndControl$$' ./test/e2e
	@cat build/e2e-control.txt

# Directories lie in memory. Each rig says its figure in a file, and it is shown also where it is not what it should be.
RIG := TMPDIR=$(RAM) GOGC=400
WAL_TEST = $(RIG) $(GO) test -count=1 -timeout 24h -parallel 16 ./wal
rig = rm -f build/$(1).txt; mkdir -p build; $(2); status=$$?; cat build/$(1).txt; exit $$status

powercut: ## cut the power after each write of a log; the last line is the figure
	@$(call rig,powercut,POWERCUT_POINTS=$(POINTS) POWERCUT_RESULT=$(CURDIR)/build/powercut.txt $(WAL_TEST) -run 'TestPowerCut$$')

powercut-control: ## the same with something missing that the log relies on: each must find violations
	@$(call rig,powercut-control,POWERCUT_RESULT=$(CURDIR)/build/powercut-control.txt $(WAL_TEST) -run 'TestPowerCutControl$$')

powercut-arm: EMULATOR = qemu-arm-static
powercut-arm: ## the same as a program for ARM v7, in an emulator; powercut-arm64: for ARM64
powercut-arm64: EMULATOR = qemu-aarch64-static
powercut-arm powercut-arm64: powercut-%:
	@test/setup.sh qemu
	CGO_ENABLED=0 GOOS=linux GOARCH=$* GOARM=$(if $(filter arm,$*),7) $(GO) test -c -o build/wal-$*.test ./wal
	@$(call rig,powercut-$*,(cd wal && $(RIG) POWERCUT_ON=' $*' POWERCUT_POINTS=$(ARM_POINTS) POWERCUT_RESULT=$(CURDIR)/build/powercut-$*.txt \
		$(EMULATOR) ../build/wal-$*.test -test.parallel 16 -test.timeout 24h -test.run 'TestPowerCut$$'))

salvage: ## damage logs and salvage them; the last line is the figure
	@$(call rig,salvage,SALVAGE_CASES=500 SALVAGE_RESULT=$(CURDIR)/build/salvage.txt $(WAL_TEST) -run 'TestSalvage$$')

damage: ## open damaged logs; the last line is the figure
	@$(call rig,damage,DAMAGE_CASES=10000 DAMAGE_RESULT=$(CURDIR)/build/damage.txt $(WAL_TEST) -run 'TestDamage$$')

faults: ## make one call of a log after the other fail; the last line is the figure
	@$(call rig,faults,FAULT_CASES=1000000 FAULT_RESULT=$(CURDIR)/build/faults.txt $(WAL_TEST) -run 'TestFaults$$')

powercut-block: ## cut the power below ext4, before each write and flush of a block device (root, FUSE); the last line is the figure
	@rm -f build/powercut-block.txt && mkdir -p build
	@cd test/blockcut && POWERCUT_POINTS=$(BLOCKS) POWERCUT_RESULT=$(CURDIR)/build/powercut-block.txt \
		$(GO) test -count=1 -timeout 24h -run 'TestPowerCut$$' .
	@cat build/powercut-block.txt

powercut-block-control: ## the same without flushes, and with a device that lies about them: each must find violations
	@rm -f build/powercut-block-control.txt && mkdir -p build
	@cd test/blockcut && POWERCUT_RESULT=$(CURDIR)/build/powercut-block-control.txt \
		$(GO) test -count=1 -timeout 30m -run 'TestPowerCutControl$$' .
	@cat build/powercut-block-control.txt

# All of DRIVERS (kafka nats pulsar redis) side by side: they wait most of the time.
conformance: setup ## the suite of every uplink and delivery, in its long form; the last lines are the figures (UPLINK_LONG= for the short one)
	@UPLINK_LONG=$(if $(filter undefined,$(origin UPLINK_LONG)),1,$(UPLINK_LONG)) $(GO) run ./test/conformance $(DRIVERS)

.PHONY: memory-uplinks
memory-uplinks: setup ## what each uplink needs to drain 1 GB; the last lines are the figures
	@$(GO) run ./test/benchuplinks -memory $(DRIVERS)

# The figures go to a file, from several tests.
UPLINK_TESTS = $(GO) test -count=1 -timeout 10h -p $(words $(DRIVERS))
kill-uplinks: setup ## kill -9 of the gateway, KILLS (12) times for each uplink and delivery, and the negative controls; the last lines are the figures
	@$(call rig,kill-uplinks,UPLINK_KILLS=$(KILLS) UPLINK_RESULT=$(CURDIR)/build/kill-uplinks.txt $(UPLINK_TESTS) -run 'TestKills|Control' $(UPLINKS))

kill-brokers: setup ## kill -9 of the broker under load, BROKER_KILLS (3) times for each uplink and delivery; the last lines are the figures
	@$(call rig,kill-brokers,UPLINK_BROKER_KILLS=$(BROKER_KILLS) UPLINK_RESULT=$(CURDIR)/build/kill-brokers.txt $(UPLINK_TESTS) -run 'TestBrokerKills' $(UPLINKS))

bench-uplinks: setup ## throughput and memory of each uplink against a bare client; writes docs/performance.md (BENCH_SHORT=1: a few minutes, writes nothing)
	@$(GO) run ./test/benchuplinks $(if $(BENCH_SHORT),,-table docs/performance.md)
	@$(MAKE) --no-print-directory bench-kafka

bench-kafka: setup ## what exactly once costs in Kafka, by the size of transactions; writes docs/performance.md (BENCH_SHORT=1: a minute, writes nothing)
	@$(if $(BENCH_SHORT),,KAFKA_BENCH_TABLE=$(CURDIR)/docs/performance.md) $(GO) test -count=1 -timeout 2h -run '^$$' -bench Drain \
		-benchtime $(if $(BENCH_SHORT),3x,5x) ./uplink/kafka 2>&1 | grep -v -e '^goos' -e '^goarch' -e '^pkg' -e '^cpu' -e '^PASS' -e '^ok'

size: ## the binary for every architecture, each uplink left out in turn; writes docs/binary-size.md
	SIZE_ALL=1 $(GO) test -count=1 -timeout 2h -run 'TestBinarySize$$' ./cmd/gateway -update

bench: setup ## figures as ratios against a reference of the same run
	$(GO) test -run '^$$' -bench . ./pipeline ./device/mqtt
	$(GO) test -run '^$$' -bench 'Append|Read' ./wal
	$(GO) test -run '^$$' -bench Done -benchtime 1000000x ./wal
	@$(GO) run ./test/bench

bench-wal: ## the log against a raw file and beside other logs, DEVICE loop or emmc; writes docs/performance.md (BENCH_SHORT=1: a minute)
	@cd test/benchwal && $(GO) run . -device $(DEVICE) -table ../../docs/performance.md

soak: setup ## the long forms
	E2E_KILLS=300 E2E_RESULT=$(CURDIR)/build/soak.txt $(GO) test -count=1 -timeout 4h -run 'TestEndToEnd$$' ./test/e2e
	@cat build/soak.txt
	$(MAKE) powercut POINTS=5000000
	$(MAKE) powercut-arm powercut-arm64 ARM_POINTS=10000
	$(MAKE) powercut-block BLOCKS=5000
	$(MAKE) fuzz FUZZTIME=5m
	$(MAKE) conformance
	$(MAKE) kill-uplinks KILLS=100
	$(MAKE) kill-brokers BROKER_KILLS=20
	$(MAKE) memory-uplinks

fuzz: ## every fuzz target for FUZZTIME (10s)
	@$(GO) list ./... | while read -r pkg; do \
		for target in $$($(GO) test -list '^Fuzz' "$$pkg" | grep '^Fuzz'); do \
			echo "fuzz $$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5x "$$pkg" || exit 1; \
		done; \
	done

deb: ## Debian packages for amd64, arm64 and armhf in build/
	@for arch in amd64 arm64 armhf; do packaging/deb/build.sh $$arch $(VERSION) build || exit 1; done

SHELL := /bin/bash
