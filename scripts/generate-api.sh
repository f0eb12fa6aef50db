#!/usr/bin/env bash
# Generates the Go code in api/ from the .proto files. The tools have pinned versions and are kept in
# build/tools: protoc, from PyPI's grpcio-tools, and its two plugins for Go. The generated code is
# committed, so run this only after a change of a .proto file. `make generate` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

grpcio_tools=1.81.1
protoc_gen_go=v1.36.12
protoc_gen_go_grpc=v1.6.2

tools=$PWD/build/tools/protoc-$grpcio_tools-$protoc_gen_go-$protoc_gen_go_grpc
if [ ! -e "$tools/complete" ]; then
  rm -rf "$tools"
  python3 -m venv "$tools/venv"
  "$tools/venv/bin/pip" install --quiet --disable-pip-version-check "grpcio-tools==$grpcio_tools"
  GOBIN=$tools/bin go install "google.golang.org/protobuf/cmd/protoc-gen-go@$protoc_gen_go"
  GOBIN=$tools/bin go install "google.golang.org/grpc/cmd/protoc-gen-go-grpc@$protoc_gen_go_grpc"
  touch "$tools/complete"
fi

PATH=$tools/bin:$PATH "$tools/venv/bin/python" -m grpc_tools.protoc -I api \
  --go_out=api --go_opt=paths=source_relative \
  --go-grpc_out=api --go-grpc_opt=paths=source_relative,require_unimplemented_servers=false \
  api/inference/inference.proto api/triton/model_config.proto \
  api/control/control.proto api/control/pulse.proto api/provider/provider.proto \
  api/extproc/extproc.proto
