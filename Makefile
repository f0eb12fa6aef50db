# Muster. GOARCH=arm64 (with CC naming a cross compiler) builds for that.

CHAOS_FLAGS ?=
DEMO_FLAGS ?=
FUZZTIME ?= 1m

# The binary is stripped, and nothing reads what debuggers need: a tenth of the time to compile. All
# that make calls has the flag, so that it shares what is compiled; `make build GOFLAGS=` goes without.
export GOFLAGS ?= -gcflags=all=-dwarf=false

.PHONY: build muster-ec2 test demo reproduce-test race fuzz lint cross check-onnx conformance corpus \
	python-test wheel examples docs-commands dashboard-test scenarios causes causes-nightly chaos moto oidc \
	stores bench packages image \
	container chart k8s-cluster k8s k8s-node picker test-packages vulncheck generate reference notice \
	nightly onnxruntime clean

# The one file to install, with ONNX Runtime in it.
build: onnxruntime
	CGO_ENABLED=1 go build -trimpath -buildvcs=auto -tags embed_onnxruntime -ldflags='-s -w' \
		-o bin/muster ./cmd/muster

# The program that rents on EC2, which agents start: the SDK of EC2 alone compiles for minutes.
muster-ec2:
	CGO_ENABLED=1 go build -trimpath -buildvcs=auto -ldflags='-s -w' -o bin/muster-ec2 ./cmd/muster-ec2

# All tests, with the real ONNX Runtime. They run without go vet, which `make lint` runs. GOGC=400
# saves a quarter of their CPU time. With -trimpath they reuse what `make build` has compiled.
test race: export GOGC ?= 400
test: onnxruntime
	REQUIRE_ONNXRUNTIME=1 go test -trimpath -vet=off ./...

# Shows a fleet at work on this machine, in a minute; with DEMO_FLAGS=--short in half of that.
demo: build
	@bin/muster demo $(DEMO_FLAGS)

# What takes too long for each change: ten rounds of each cause of lateness, ten thousand random
# problems of the fleet's plan and a thousand of `muster plan`, two hundred random days, and a
# Kubernetes control plane with 500 nodes. About an hour of CPU; DAYS=20 for a tenth of the days.
DAYS ?= 200
nightly: export GOGC ?= 400
nightly: causes-nightly k8s-cluster k8s k8s-node picker
	MUSTER_SLOW_TESTS=1 go test -trimpath -vet=off -count=1 -timeout 12h ./leader/fleetplan ./leader/plan
	MUSTER_DAYS=$(DAYS) go test -trimpath -vet=off -count=1 -timeout 12h ./sim/day

# Each cause of lateness ten times, an hour, on a quiet machine.
causes-nightly:
	$(MAKE) causes CAUSES_FLAGS="-rounds 10" CAUSES_TIMEOUT=3h

# The short tests with the race detector, without those of packages that start no goroutine
# (pure_test.go). Of sim only the searches start any. -cpu 1, because with more the race detector
# itself crashes now and then in tests on virtual time: timers of a synctest bubble that fire on two
# threads share one of its contexts (Go 1.26, runtime/time.go, unlockAndRun). It still finds races
# between goroutines. One package more than there are cores runs at a time, since tests also wait.
race: onnxruntime
	REQUIRE_ONNXRUNTIME=1 go test -trimpath -vet=off -race -short -cpu 1 -timeout 20m \
		-p $$(($$(getconf _NPROCESSORS_ONLN) + 1)) $$(go list ./... | \
		grep -vE '/(api/names|client/queries|cmd/.*/placecmd|leader(/.*)?|profiles(/.*)?|runtime/queue|sim(/.*)?)$$')
	go test -trimpath -vet=off -race -short -cpu 1 -run 'TestCompare|Throughput|TestOracle' ./sim

# The short tests of reproduce/, a module of its own: papers' figures, and the systems in them.
reproduce-test:
	go -C reproduce test -trimpath -vet=off -short ./...

# Every fuzz target for FUZZTIME.
fuzz:
	@scripts/fuzz.sh $(FUZZTIME)

# Formatting, vet, staticcheck, shellcheck, ruff and mypy, and whether NOTICE is current.
lint:
	@scripts/lint.sh

# Whether all commands and their tests compile where agents do not run, and without cgo.
cross:
	@go run -trimpath ./scripts/tools/cross ./cmd/muster/... linux/amd64 darwin/arm64 darwin/amd64 windows/amd64

# Generates models and checks them with the ONNX project's checker.
check-onnx: build
	@scripts/check-onnx.sh

# Checks an agent with unmodified clients: tritonclient, grpcurl and curl.
conformance: build
	@scripts/conformance.sh

# Serves small models of public exporters, and compares the answers with ONNX Runtime in Python.
# PAGE=docs/internals/corpus.md keeps the table.
corpus: build
	@$$(scripts/venv.sh corpus)/python scripts/test/conformance/corpus.py --muster bin/muster \
		$(if $(PAGE),--page $(PAGE))

# The wheels of both architectures, in build/dist: the Python client and the binary; ARCHS="amd64" for
# one.
wheel: build
	@scripts/wheel.sh $(ARCHS)

# Tests python/ against real agents, on the oldest and the newest Python here.
python-test: build
	@scripts/python.sh

# Runs examples/: three agents, and a Go client, a Python client and Prometheus's rules against them.
examples: build
	@scripts/examples.sh

# Runs the shell blocks of the pages as a user would paste them, each page in a network of its own; root.
docs-commands: build
	@go test -trimpath -vet=off -tags fleet -count=1 -v ./scripts/test/docs

# The dashboard's page: in Node, in a real Chromium, and beside a fleet. UPDATE=1 keeps new pictures.
dashboard-test: build
	@scripts/dashboard.sh

# Every scenario of scripts/test/fleet, each for some seconds: fleets of agents as processes, which
# are killed, frozen, cut off, replaced and overloaded. They wait more than they compute.
FLEET = go test -trimpath -vet=off -tags fleet -count=1 -v ./scripts/test/fleet
scenarios: build
	@$(FLEET) -short -parallel 4 -timeout 20m

# Whether `muster why` names the causes of lateness that are seeded; `make
# causes-nightly` is the full form.
causes: build
	@go test -trimpath -vet=off -tags fleet -count=1 -v -timeout $(or $(CAUSES_TIMEOUT),60m) \
		./scripts/test/causes $(CAUSES_FLAGS)

# The scenario of chaos: all of that at random, for ten minutes; CHAOS_FLAGS="-for 1m" for less.
chaos: build
	@$(FLEET) -run '^TestChaos$$' -timeout 0 $(CHAOS_FLAGS)

# Holds cloud/ec2, bin/muster-ec2 and the stack of deploy/ec2 against moto, a program that answers like
# AWS.
moto: build muster-ec2
	@scripts/moto.sh

# Holds api/secure against the tokens of oidc-provider.
oidc:
	@scripts/oidc.sh

# Holds models/store/remote against Azurite and fake-gcs-server, which answer like Azure and Google.
stores:
	@scripts/stores.sh

# Benchmarks that compare serving with ONNX Runtime alone and with a bare gRPC echo.
bench: onnxruntime
	REQUIRE_ONNXRUNTIME=1 go test -run '^$$' -bench 'Executor|Lanes' -benchtime 500x ./runtime
	REQUIRE_ONNXRUNTIME=1 go test -run '^$$' -bench . -benchtime 1x ./agent

# Debian and RPM packages for both architectures, in build/packages; ARCHS="amd64" for one. With
# CUDA=1 also muster-cuda, for amd64.
packages:
	@CUDA=$(CUDA) scripts/packages.sh $(ARCHS)

# Installs, starts, queries, drains and removes the deb; needs root.
test-packages: packages
	@scripts/test-packages.sh

# The container image, for both architectures, in build/image/muster; ARCHS="amd64" for one. Without a
# container engine. With CUDA=1 also muster-cuda, for amd64.
image:
	@CUDA=$(CUDA) scripts/image.sh $(ARCHS)

# Runs the image of this machine's architecture in two containers, by runc; needs root.
container: build
	@scripts/image.sh $$(go env GOHOSTARCH)
	@scripts/container.sh

# Lints and renders the Helm chart.
chart: build
	@scripts/chart.sh

# Builds a Kubernetes control plane and kwok, which plays nodes, into MUSTER_K8S_CACHE (default:
# ~/.cache/muster-k8s): ten minutes, once for each version.
k8s-cluster:
	@scripts/k8s.sh build

# Holds the chart, the examples and the provider of pods against that; skipped where it is not built.
# K8S_FLAGS=-short for 100 nodes and without what waits for minutes.
k8s: build
	@scripts/k8s.sh test -v -parallel 4 $(K8S_FLAGS)

# Runs the chart's pods on two kubelets with Debian's containerd; needs root, and is skipped where it
# cannot.
k8s-node: build
	@scripts/image.sh $$(go env GOHOSTARCH)
	@scripts/k8s.sh node

# Holds agents as endpoint pickers against a real Envoy, which PyPI has.
picker: build
	@$$(scripts/venv.sh picker)/python scripts/test/picker/picker.py --muster bin/muster

# Looks for known vulnerabilities in the code that Muster calls; skipped if offline.
vulncheck:
	@scripts/vulncheck.sh

# Generates the code in api/.
generate:
	@scripts/generate-api.sh

# Writes docs/configuration.md, which the code has in it.
reference:
	@mkdir -p build
	@go run -trimpath ./cmd/muster config reference > build/configuration.md
	@mv build/configuration.md docs/configuration.md

# Writes NOTICE: what the binary contains from others, under which licences.
notice:
	@go run ./scripts/tools/notice

# Downloads ONNX Runtime's library if it is not there; with CUDA=1 also its CUDA build and NVIDIA's
# libraries (1.4 GB), for amd64.
onnxruntime:
	@scripts/fetch-onnxruntime.sh
	@$(if $(filter 1,$(CUDA)),scripts/fetch-onnxruntime-cuda.sh)

clean:
	rm -rf bin build runtime/internal/ortlib/*.zst
