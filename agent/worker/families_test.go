package worker_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
)

// TestFamily: any agent answers queries for a family whose variants are on two agents, with a
// leader and without, and says which variant answered.
func TestFamily(t *testing.T) {
	for _, role := range []string{"may", "never"} {
		t.Run("leader "+role, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				as := func(a agent.Inside) { a.Config().Leader = role }
				agents := []*agenttest.Member{
					f.Start(f.Variants(2*time.Millisecond, agenttest.Exact), as),
					f.Start(f.Variants(time.Millisecond, agenttest.Coarse), as),
				}
				f.Settled(agents...)
				f.Family("rank", "ncf ncf-int8", agents...)
				if role == "may" {
					f.Led(agents...)
				}
				for _, a := range agents {
					answersFamily(f, a)
				}
				if role == "may" {
					tellsFamily(f, agents)
				}
			})
		})
	}
}

// tellsFamily checks the status and the metrics after queries for the family rank.
func tellsFamily(f *agenttest.Fleet, agents []*agenttest.Member) {
	f.Helper()
	leader := f.Led(agents...)
	before, err := leader.Control.Status(f.Context(), &control.StatusRequest{})
	if err != nil {
		f.Fatal(err)
	}
	if failed := before.GetFamilies()[0]; failed.GetFamily() != "rank" {
		f.Fatalf("families: %v, want rank", before.GetFamilies())
	}
	late := agenttest.NewRequest("rank", 0) // it cannot be answered in time, and reaches no variant
	late.Parameters = map[string]*inference.InferParameter{"timeout": {
		ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 1}}}
	if _, err := agents[1].OIP.ModelInfer(f.Context(), late); err == nil {
		f.Error("a query of a microsecond is answered")
	}
	f.Eventually(10*time.Second, func() string {
		for _, a := range agents { // any agent asks the leader
			s, err := a.Control.Status(f.Context(), &control.StatusRequest{})
			if err != nil {
				f.Fatal(err)
			}
			r := s.GetFamilies()[0]
			answered := uint64(0)
			for _, v := range r.GetVariants() {
				answered += v.GetAnswered()
			}
			if len(r.GetVariants()) != 2 || r.GetVariants()[0].GetModel() != "ncf" ||
				r.GetBest() != 1 || r.Accuracy == nil || r.GetAccuracy() < .95 ||
				r.GetAccuracy() > 1 || answered < 50 || r.GetRate() <= 0 || r.GetWithinQos() >= 1 {
				return fmt.Sprintf("%s: status of rank: %v", a.Host, r)
			}
		}
		return ""
	})
	sum, count, gauges := 0., uint64(0), 0
	_, documented := agenttest.DocumentedMetrics(f.T)
	for _, a := range agents {
		all, err := a.Registry().Gather()
		if err != nil {
			f.Fatal(err)
		}
		for _, family := range all {
			if name := family.GetName(); slices.Contains(agenttest.MetricsOfFamilies, name) &&
				agenttest.TypeAndLabels(family) != documented[name] {
				f.Errorf("%s is a %q, docs/metrics.md has %q", name,
					agenttest.TypeAndLabels(family),
					documented[name])
			}
			for _, m := range family.GetMetric() {
				switch family.GetName() {
				case "muster_answers_accuracy":
					sum += m.GetSummary().GetSampleSum()
					count += m.GetSummary().GetSampleCount()
				case "muster_family_accuracy":
					if v := m.GetGauge().GetValue(); a != leader || v < .95 || v > 1 {
						f.Errorf("%s: muster_family_accuracy is %v", a.Host, v)
					}
					gauges++
				}
			}
		}
	}
	if mean := sum / float64(count); !(mean >= .95 && mean <= 1) || gauges != 1 {
		f.Errorf("the answers' accuracies are %v of %d, by %d gauges, want one", sum, count, gauges)
	}
}

// answersFamily checks what an agent answers about the family rank.
func answersFamily(f *agenttest.Fleet, a *agenttest.Member) {
	f.Helper()
	for _, c := range []struct {
		least float64
		want  []string // variants and accuracies that may answer
	}{
		{0, []string{"ncf/1 of 1", "ncf-int8/1 of 0.95"}},
		{.95, []string{"ncf/1 of 1", "ncf-int8/1 of 0.95"}},
		{.99, []string{"ncf/1 of 1"}},
	} {
		for range 10 {
			resp, err := a.OIP.ModelInfer(f.Context(), agenttest.NewRequest("rank", c.least))
			if err != nil {
				f.Fatalf("%s, least %v: %v", a.Host, c.least, err)
			}
			said := resp.GetParameters()
			got := fmt.Sprintf("%s/%s of %v", said["variant"].GetStringParam(),
				said["variant_version"].GetStringParam(), said["accuracy"].GetDoubleParam())
			if resp.GetModelName() != "rank" || resp.GetModelVersion() != "" ||
				!slices.Contains(c.want, got) {
				f.Errorf("%s, least %v: %s version %q answered by %s, want rank by one of %q",
					a.Host, c.least, resp.GetModelName(), resp.GetModelVersion(), got, c.want)
			}
		}
	}
	// A model's own name pins it, and its answer says no more than that it is emulated.
	resp, err := a.OIP.ModelInfer(f.Context(), agenttest.NewRequest("ncf-int8", 0))
	if err != nil || resp.GetModelName() != "ncf-int8" || resp.GetModelVersion() != "1" ||
		len(resp.GetParameters()) != 1 || !resp.GetParameters()["emulated"].GetBoolParam() {
		f.Errorf("%s: ncf-int8 by name: %v, %v", a.Host, resp, err)
	}
	for _, c := range []struct {
		req  *inference.ModelInferRequest
		code codes.Code
		want string
	}{
		{&inference.ModelInferRequest{ModelName: "rank", ModelVersion: "1"}, codes.InvalidArgument,
			`version "1" of "rank", which is a family`},
		{agenttest.NewRequest("rank", 1.5), codes.InvalidArgument, "least_accuracy is 1.5"},
		{agenttest.NewRequest("rank", -1), codes.InvalidArgument, "least_accuracy is -1"},
		{agenttest.NewRequest("ncf-int8", .99), codes.NotFound, "does not reach min_accuracy 0.99"},
		{agenttest.NewRequest("rang", 0), codes.NotFound, "families: rank"},
	} {
		_, err := a.OIP.ModelInfer(f.Context(), c.req)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			f.Errorf("%s: %v: %v, want %v with %q", a.Host, c.req, err, c.code, c.want)
		}
	}
	body := strings.Replace(agenttest.NCFBody(2), "{", `{"parameters":{"least_accuracy":1},`, 1)
	if code, text := request(f, a, "POST", "/v2/models/rank/infer", body); code != 200 ||
		!strings.Contains(text, `"model_name":"rank","model_version":"","parameters":{`+
			`"variant":"ncf","variant_version":"1","accuracy":1,"emulated":true}`) {
		f.Errorf("%s: REST: %d %s", a.Host, code, text)
	}
	for path, want := range map[string]int{
		"/v2/models/rank/ready": 200, "/v2/models/rank/versions/1/ready": 400,
		"/v2/models/rank/versions/1": 400, "/v2/models/rank/stats": 200,
		"/v2/models/rank/config": 200, "/v2/models/rank/versions/1/config": 400,
	} {
		if code, text := request(f, a, "GET", path, ""); code != want {
			f.Errorf("%s: REST: %s: %d %s, want %d", a.Host, path, code, text, want)
		}
	}
	if code, text := request(f, a, "POST", "/v2/models/rank/versions/1/infer", body); code != 400 {
		f.Errorf("%s: REST: version of a family: %d %s, want 400", a.Host, code, text)
	}

	m, err := a.OIP.ModelMetadata(f.Context(), &inference.ModelMetadataRequest{Name: "rank"})
	if err != nil || m.GetName() != "rank" || len(m.GetVersions()) != 0 ||
		m.GetInputs()[0].GetName() != "ids" {
		f.Errorf("%s: metadata of rank: %v, %v", a.Host, m, err)
	}
	p, err := oip.ParseProperties(m.GetProperties())
	if err != nil || p.Family != "rank" || fmt.Sprint(p.Variants) != "[ncf ncf-int8]" ||
		fmt.Sprint(p.Accuracy) != "map[ncf:1 ncf-int8:0.95]" ||
		fmt.Sprint(p.Score) != "map[ncf:0.9]" || p.QoSTarget != 5*time.Millisecond {
		f.Errorf("%s: properties of rank: %+v, %v", a.Host, p, err)
	}
	conf, err := a.OIP.ModelConfig(f.Context(), &inference.ModelConfigRequest{Name: "rank"})
	if c := conf.GetConfig(); err != nil || c.GetName() != "rank" ||
		int(c.GetMaxBatchSize()) != p.LargestBatchSize || len(c.GetInput()) != 1 ||
		c.GetInput()[0].GetName() != "ids" {
		f.Errorf("%s: configuration of rank: %v, %v, want that of its metadata", a.Host, conf, err)
	}
	m, err = a.OIP.ModelMetadata(f.Context(), &inference.ModelMetadataRequest{Name: "ncf-int8"})
	if got := m.GetProperties(); err != nil || got["family"] != "rank" ||
		got["accuracy.ncf-int8"] != "0.95" {
		f.Errorf("%s: properties of ncf-int8: %v, %v", a.Host, got, err)
	}
}

// TestFamilyBySDK: a client that knows the fleet, and one that does not, ask for a family.
func TestFamilyBySDK(t *testing.T) {
	for _, options := range [][]client.Option{nil, {client.WithoutFleet()}} {
		agenttest.InFleet(t, func(f *agenttest.Fleet) {
			agents := []*agenttest.Member{
				f.Start(f.Variants(2*time.Millisecond, agenttest.Exact)),
				f.Start(f.Variants(time.Millisecond, agenttest.Coarse)),
			}
			f.Settled(agents...)
			f.Family("rank", "ncf ncf-int8", agents...)
			f.Led(agents...)
			dial := grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
				return f.Network.Dial(ctx, "client", to)
			})
			c, err := client.New([]string{agents[1].Host + ":8001"}, append(options,
				client.WithDialOptions(dial,
					grpc.WithTransportCredentials(insecure.NewCredentials())))...)
			if err != nil {
				f.Fatal(err)
			}
			defer c.Close()
			if options == nil {
				f.Eventually(10*time.Second, func() string {
					if c.Gateway() == nil {
						return "the client has no gateway"
					}
					return ""
				})
			}
			ids, err := tensor.Of("ids", agenttest.NCFIDs(20), 20, 4)
			if err != nil {
				f.Fatal(err)
			}
			ask := func(least float64) (*oip.Response, error) {
				return c.Infer(f.Context(), &oip.Request{
					Model: "rank", LeastAccuracy: least, Inputs: []tensor.Tensor{ids},
				})
			}
			resp, err := ask(.96)
			if err != nil || resp.Model != "rank" || resp.Variant != "ncf" ||
				resp.VariantVersion != "1" || resp.Accuracy != 1 || resp.Parameters != nil {
				f.Fatalf("got %+v, %v, want the answer of ncf", resp, err)
			}
			resp.Release()
			if _, err := ask(2); err == nil || !strings.Contains(err.Error(), "min_accuracy") {
				f.Errorf("least accuracy 2: %v, want an error that names it", err)
			}
			// Without the best variant the fleet serves what it has, and says what it has not.
			if err := agents[0].Worker().Repository().Unload(f.Context(), "ncf"); err != nil {
				f.Fatal(err)
			}
			f.Family("rank", "ncf-int8", agents...)
			f.Eventually(10*time.Second, func() string {
				if resp, err = ask(0); err != nil || resp.Variant != "ncf-int8" ||
					resp.Accuracy != .95 {
					return fmt.Sprintf("got %+v, %v, want the answer of ncf-int8", resp, err)
				}
				return ""
			})
			f.Eventually(10*time.Second, func() string { // the client's own view may be older
				_, err = ask(.96)
				if want := `no variant of family "rank" reaches min_accuracy 0.96; the most ` +
					`accurate is ncf-int8 with 0.95`; err == nil ||
					!strings.Contains(err.Error(), want) {
					return fmt.Sprintf("got %v, want %s", err, want)
				}
				return ""
			})
		})
	}
}

// TestFamilyNameAtWorker: a worker that gets a family's name, as of an agent that is alone,
// answers with the most accurate of its variants that is in time, else with the fastest.
func TestFamilyNameAtWorker(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a := f.Start(f.Variants(2*time.Millisecond, map[string]string{
			"ncf": agenttest.Exact["ncf"], "ncf-int8": agenttest.Coarse["ncf-int8"],
		}))
		f.Settled(a)
		f.Family("rank", "ncf ncf-int8", a)
		attempt := func(waited time.Duration, req *inference.ModelInferRequest) (
			*inference.ModelInferResponse, error) {
			header := control.Attempt{Gateway: 7, Sequence: 4, Attempt: 1, Waited: waited}
			return a.OIP.ModelInfer(metadata.AppendToOutgoingContext(f.Context(),
				control.AttemptHeader, header.String()), req)
		}
		for range 20 { // it learns how long they take
			for name := range map[string]bool{"ncf": true, "ncf-int8": true} {
				if _, err := attempt(0, agenttest.NewRequest(name, 0)); err != nil {
					f.Fatal(err)
				}
			}
		}
		resp, err := attempt(0, agenttest.NewRequest("rank", 0))
		if err != nil || resp.GetModelName() != "rank" ||
			resp.GetParameters()["variant"].GetStringParam() != "ncf" {
			f.Errorf("got %v, %v, want the answer of ncf", resp, err)
		}
		req := agenttest.NewRequest("rank", 0)
		req.ModelVersion = "1"
		if _, err := attempt(0, req); status.Code(err) != codes.InvalidArgument {
			f.Errorf("with a version: %v, want InvalidArgument", err)
		}
	})
}

// TestFamilyNames: an agent gives way to those that joined before it, and says to whom.
func TestFamilyNames(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second map[string]string
		// what the second agent then announces, and what it says of the other models
		want, model, why string
		state            string
	}{
		{"a family with the name of another's model", map[string]string{"rank": ""},
			agenttest.Coarse,
			"ncf-int8", "ncf-int8", `family "rank" has the name of a model of agent`, "READY"},
		{"a model with the name of another's family", agenttest.Exact,
			map[string]string{"rank": "", "din": ""}, "din", "rank",
			"not served: agent", "UNAVAILABLE"},
		{"another QoS target", agenttest.Exact, map[string]string{
			"ncf-int8": "qos_target_ms: 7\nfamily: rank\n",
		}, "ncf-int8", "ncf-int8", `qos_target_ms is 7, 5 in ncf of agent`, "READY"},
		{"too inaccurate", agenttest.Exact,
			map[string]string{"ncf-int8": "family: rank\naccuracy: .044\n"},
			"ncf-int8", "ncf-int8", `accuracy is 0.044, less than 0.8 of the best one's, 1; ` +
				`make a more accurate`, "READY"},
	} {
		t.Run(c.name, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				agents := []*agenttest.Member{f.Start(f.Variants(time.Millisecond, c.first))}
				f.Settled(agents...)
				agents = append(agents, f.Start(f.Variants(time.Millisecond, c.second)))
				f.Settled(agents...)
				f.Eventually(10*time.Second, func() string {
					index, err := agents[1].OIP.RepositoryIndex(f.Context(),
						&inference.RepositoryIndexRequest{})
					if err != nil {
						f.Fatal(err)
					}
					for _, m := range index.GetModels() {
						if m.GetName() == c.model && m.GetState() == c.state &&
							strings.Contains(m.GetReason(), c.why) {
							return ""
						}
					}
					return fmt.Sprintf("index: %v, want %s %s with %q", index, c.model, c.state,
						c.why)
				})
				var got []string // after the index, which has the model when it is loaded
				for _, m := range agents[1].Members().Own().GetModels() {
					got = append(got, m.GetName()+m.GetFamily())
				}
				if fmt.Sprint(got) != "["+c.want+"]" {
					f.Errorf("it announces %q, want %s and no family", got, c.want)
				}
				log := agents[1].Log.String()
				if strings.Count(log, "is not served as its model.yaml says") != 1 ||
					!strings.Contains(log, agents[0].Name()) {
					f.Errorf("log: %s\nwant one warning, and one line that names %s", log,
						agents[0].Name())
				}
				// The name goes on meaning what it meant.
				resp, err := agents[1].OIP.ModelInfer(f.Context(), agenttest.NewRequest("rank", 0))
				if err != nil || resp.GetModelName() != "rank" {
					f.Errorf("query for rank: %v, %v", resp, err)
				}
			})
		})
	}
}
