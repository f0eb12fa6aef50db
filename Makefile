# Muster. GOARCH=arm64 (with CC naming a cross compiler) builds for that.

CHAOS_FLAGS ?=
DEMO_FLAGS ?=
FUZZTIME ?= 1m

.PHONY: build test demo race fuzz lint check-onnx conformance scenarios chaos bench packages \
	test-packages vulncheck generate notice onnxruntime clean

# The one file to install, with ONNX Runtime in it.
build: onnxruntime
	CGO_ENABLED=1 go build -trimpath -buildvcs=auto -tags embed_onnxruntime -ldflags='-s -w' \
		-o bin/muster ./cmd/muster

# All tests, with the real ONNX Runtime. `make lint` vets; GOGC=400 saves a quarter of the tests'
# CPU time, and -trimpath shares what `make build` has compiled.
test race: export GOGC ?= 400
test: onnxruntime
	REQUIRE_ONNXRUNTIME=1 go test -trimpath -vet=off ./...

# Muster at work on this machine, in 90 s; DEMO_FLAGS=--short for half of that.
demo: build
	@go run -trimpath -tags embed_onnxruntime ./scripts/demo $(DEMO_FLAGS)

# The tests again, in their short forms and with the race detector, but of packages that start no
# goroutine (pure_test.go).
race: onnxruntime
	REQUIRE_ONNXRUNTIME=1 go test -trimpath -vet=off -race -short -timeout 20m $$(go list ./... | \
		grep -vE '/(client/queries|leader|leader/(election|fluid|learn|match)|profiles|runtime/queue)$$')

# Every fuzz target for FUZZTIME.
fuzz:
	@scripts/fuzz.sh $(FUZZTIME)

# Formatting, vet, staticcheck, shellcheck and ruff, and whether NOTICE is current.
lint:
	@scripts/lint.sh

# What the zoo generates passes the ONNX checker.
check-onnx: build
	@scripts/check-onnx.sh

# tritonclient, grpcurl and curl, unmodified, against an agent.
conformance: build
	@scripts/conformance.sh

# Fleets of agents as processes, in every scenario of scripts/fleet, each for some seconds: killed,
# frozen, cut off, replaced, asked for too much. `go run ./scripts/fleet` lists them.
scenarios: build
	@go run ./scripts/fleet all --short

# The same at random, for ten minutes; CHAOS_FLAGS="--for 1m --seed 7" for less of it.
chaos: build
	@go run ./scripts/fleet chaos $(CHAOS_FLAGS)

# Benchmarks of the serving path beside ONNX Runtime alone and a bare gRPC echo.
bench: onnxruntime
	REQUIRE_ONNXRUNTIME=1 go test -run '^$$' -bench 'Executor|Lanes' -benchtime 500x ./runtime
	REQUIRE_ONNXRUNTIME=1 go test -run '^$$' -bench . -benchtime 1x ./agent

# Debian and RPM packages for both architectures, in build/packages; ARCHS="amd64" for one.
packages:
	@scripts/packages.sh $(ARCHS)

# The deb installed, started, queried, drained and removed; needs root.
test-packages: packages
	@scripts/test-packages.sh

# Known vulnerabilities in what the code calls; skipped where their database is out of reach.
vulncheck:
	@scripts/vulncheck.sh

# The generated code in api/.
generate:
	@scripts/generate-api.sh

# NOTICE: what the binary has from others, under which licences.
notice:
	@go run ./scripts/notice

# ONNX Runtime's library, once.
onnxruntime:
	@scripts/fetch-onnxruntime.sh

clean:
	rm -rf bin build runtime/internal/ortlib/*.zst
