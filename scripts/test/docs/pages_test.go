//go:build fleet

package docs

import "strings"

// emulated are the arguments of an agent that runs no model.
const emulated = "--executor emulated --profile shipped --instance-type r5n.large"

// twoAgents are two agents of one fleet that run no model, as on two machines.
const twoAgents = `muster models generate ncf --scale small --out model-repository
emulated() { muster agent --executor emulated --profile shipped --instance-type r5n.large "$@"; }
emulated --grpc 10.0.0.7:8001 --http 10.0.0.7:8000 --metrics 10.0.0.7:8002 --gossip 10.0.0.7:7946 \
  --state-dir state7 --insecure $KEY
emulated --join 10.0.0.7:7946 --insecure $KEY
until [ "$(muster status --json | grep -c '"instance_type"')" -ge 2 ]; do sleep .1; done
`

// aFleet says what may be rented.
const aFleet = `cat > fleet.yaml <<'END'
fleet: try
limits: {max_price_usd_per_hour: 6, types: {g4dn.xlarge: {max: 3}, r5n.large: {max: 20}}}
process: {dir: machines, models: models}
END
`

// pages are the pages with blocks of commands.
var pages = map[string]*page{
	"README.md": {
		before: `mkdir -p model-repository
muster models generate ncf wnd --scale small
cp $MADE/ranker.onnx mymodel.onnx
` + aFleet,
		changed: []string{"make build\n", "", "--rate 70", "--rate 70 --duration 2h --warm-up 10m"},
		left:    map[string]string{"make demo": "CI runs both as steps of their own"},
	},
	"backup.md": {before: anAgent, changed: []string{"/var/lib/muster/state", "state"}},
	"bench.md": {
		before: `muster models generate ncf wnd rm2 --scale small
muster agent
cat > queries.jsonl <<'END'
{"at_ms": 0, "model": "ncf", "rows": 3}
{"at_ms": 12.5, "model": "wnd", "rows": 20}
END
ids='{"name": "ids", "datatype": "INT64", "shape": [1, 4], "data": [1, 2, 3, 4]}'
echo "{\"inputs\": [$ids]}" > input.json
`,
		changed: []string{
			"--input queries.jsonl --fail-below 99", "--input input.json --fail-below 1",
			"/srv/models", "model-repository",
		},
	},
	"dashboard.md": {
		before: anAgent,
		// The stream never ends.
		changed: []string{
			"curl -sN http", "timeout 3 curl -sN http", "/api/stream\n", "/api/stream | grep -m 1 data\n",
		},
	},
	"distribution.md": {before: "muster models generate rm2 --scale small\n"},
	"doctor.md": {
		before: `muster models generate ncf --scale small
muster agent --executor emulated --profile shipped --instance-type r5n.large --grpc :8001 --insecure
muster infer ncf --wait 1m
echo 'insecure: true' > muster.yaml
`,
	},
	"ec2.md": {left: map[string]string{
		"asks AWS": "it asks AWS; `make moto` runs these commands against moto",
	}},
	"families.md": {
		before: "muster models generate ncf --scale small --out made\n" +
			"cp made/ncf/1/* .\nmv model.onnx my.onnx\n",
		changed: []string{
			"generate wnd", "generate wnd --scale small", "train clicks", "train clicks --rows 65536",
			"evaluate wnd wnd-int8 ", "evaluate wnd wnd-int8 --rows 2000 ",
			"muster infer wnd-family\n", "muster agent\nmuster infer wnd-family\n",
			`"inputs": [...]}'`, `"inputs": [...]}' || true`,
		},
	},
	"fleet.md": {
		before: `muster models generate ncf --scale small
muster certs init && muster certs issue agent node1 && muster certs issue agent node2
muster certs issue client admin
cp certs/* .
`,
		changed: []string{
			"--gossip :7946 --grpc :8001 --gossip-key key \\",
			"--gossip 10.0.0.1:7946 --grpc 10.0.0.1:8001 --gossip-key key \\",
			"--gossip :7946 --grpc :8001 --gossip-key key --join", "--state-dir state2 " +
				"--http 127.0.0.1:8010 --metrics 127.0.0.1:8012 " +
				"--gossip 10.0.0.7:7946 --grpc 10.0.0.7:8001 --gossip-key key --join",
		},
	},
	"from-fastapi.md":   {before: "cp $MADE/ranker.onnx .\n"},
	"from-ray-serve.md": {before: "cp $MADE/ranker.onnx .\n"},
	"from-triton.md": {
		before: "muster models generate ncf --scale small --out models\nmv models/ncf models/mymodel\n" +
			"rm models/mymodel/model.yaml\n",
		changed: []string{"/path/to/triton/models", "models"},
	},
	"gossip.md": {
		before: "(umask 077; muster keys generate > key; muster keys generate > gossip.key)\n" +
			"KEY='--gossip-key key'\n" +
			"export MUSTER_INSECURE=true\n" + twoAgents,
		changed: []string{"--expect 12", "--expect 2", "of 12", "of 2"},
	},
	"gpu.md": {left: map[string]string{
		"make packages": "it needs a card and CUDA, and installs packages",
	}},
	"install.md": {left: map[string]string{
		"make packages": "it installs packages on this machine; `make test-packages` does",
		"GOOS=darwin":   "`make cross` compiles for other systems",
		"apt-get":       "it installs packages on this machine",
	}},
	"kubernetes.md": {left: map[string]string{
		"helm install":  "it needs a cluster, and an image in a registry",
		"kubectl proxy": "it needs a cluster",
	}},
	"metrics.md": {before: anAgent},
	"picker.md": {left: map[string]string{
		"envoy -c": "it needs Envoy; `make picker` runs it",
	}},
	"model-repository.md": {
		before:  "cp $MADE/ranker.onnx exported.onnx\n",
		changed: []string{"generate wnd", "generate wnd --scale small"},
	},
	"performance.md": {before: `muster models generate ncf --scale small
mv model-repository/ncf model-repository/mymodel
muster agent
`},
	"placement.md": {
		left:   map[string]string{"place hera": "it needs a file that is measured for minutes"},
		before: "muster models generate ncf wnd --scale small --out models\n",
		changed: []string{
			"--model-dir models", "--model-dir models --name vm-1f2e3d4c " + emulated,
			"muster place explain", "muster infer wnd --wait 1m\nmuster place explain",
			"rollback 17", "rollback 1",
			"examples/", "$ROOT/examples/",
		},
	},
	"planning.md": {
		before: strings.Replace(anAgent, "r5n.large", "g4dn.xlarge", 1), // as plans need
		changed: []string{
			"--runs 30", "--runs 2", "bin/muster plan live",
			"muster bench --model ncf --rate 100 --duration 3s\nbin/muster plan live",
		},
	},
	"profiles.md": {
		before: `muster models generate ncf --scale small
mv model-repository/ncf model-repository/mymodel
echo 'instance_types: [{type: big, price_usd_per_hour: 1.5, class: general-purpose}]' > prices.yaml
`,
		changed: []string{ // no profile of mymodel is shipped
			"--instance-type t3.xlarge\n", "--instance-type t3.xlarge --model-dir empty\n",
			"muster agent --exec", "mkdir empty\nmuster agent --exec",
		},
	},
	"protocol.md": {before: anAgent},
	"ranking.md": {
		before: "muster models add $MADE/ranking.onnx --name ranker\nmuster agent\n",
	},
	"recorded-queries.md": {
		before: anAgent + `for at in 0 5 10 15 20 25 30 35 40 45 50 55; do
  ids='{"name": "ids", "datatype": "INT64", "shape": [2, 4], "data": [1, 2, 3, 4, 5, 6, 7, 8]}'
  echo "{\"at_ms\": $at, \"model\": \"ncf\", \"rows\": 2, \"inputs\": [$ids]}"
done > queries.jsonl
`,
		changed: []string{"profile rank", "profile ncf"},
	},
	"rent.md": {changed: []string{"--duration 1m", "--duration 10s", "--rate 30", "--rate 5"}},
	"sdk.md": {
		before: `mkdir myclient && cd myclient && go mod init myclient
cat > main.go <<'END'
package main

import _ "github.com/muster-serve/muster/client"

func main() {}
END
cd ..
export GOPROXY=off GOFLAGS=-mod=mod
`,
		changed: []string{"URL", "$ROOT"},
	},
	"security.md": {
		before: "muster models generate ncf --scale small\n",
		changed: []string{
			"muster certs revoke ads", "muster certs issue client ads\nmuster certs revoke ads",
			"--tls-crl certs/ca.crl              # with the other settings", `--tls-crl certs/ca.crl \
  --tls-cert certs/node1.crt --tls-key certs/node1.key --tls-ca certs/ca.crt`,
			"--tls-crl certs/ca.crl          # with the other settings", `--tls-crl certs/ca.crl \
  --tls-cert certs/admin.crt --tls-key certs/admin.key --tls-ca certs/ca.crt`,
		},
	},
	"sharing.md": {left: map[string]string{"--pairs": "it measures for minutes"}},
	"simulations.md": {
		before:  aFleet,
		changed: []string{"--rate 70", "--rate 70 --duration 2h --warm-up 10m"},
	},
	"tracing.md": {
		before: anAgent,
		changed: []string{
			"docker run --rm -p 16686:16686 -p 4317:4317 -p 4318:4318 jaegertracing/jaeger\n", "",
			"--traces otlp              #", emulated + " --traces otlp #",
			// The agent that starts again has not loaded ncf at once.
			"infer ncf --traces", "infer ncf --wait 1m --traces",
		},
	},
	"troubleshooting.md": {before: anAgent},
	"why.md":             {before: anAgent},
	"tenants.md": {left: map[string]string{
		"muster agent --capture": "it needs a bucket; TestCapture of cmd/muster runs such an agent",
		"muster capture /var":    "TestCapture of cmd/muster gathers, sends and simulates",
	}},
}
