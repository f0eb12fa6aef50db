package bench

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/oip"
)

// A familyServer answers queries for the family ctr by two variants in turns, three by the first
// for one by the second.
type familyServer struct {
	fakeServer
	n     int
	least float64 // of the last query
}

func (s *familyServer) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	resp, err := s.fakeServer.Infer(ctx, req)
	if err != nil || req.Model != "ctr" {
		return resp, err
	}
	s.least = req.LeastAccuracy
	if s.n++; s.n%4 == 0 {
		return &oip.Response{
			Variant: "wnd-xs", VariantVersion: "2", Accuracy: .9, Emulated: true,
		}, nil
	}
	return &oip.Response{Variant: "wnd", VariantVersion: "1", Accuracy: 1}, nil
}

// TestEffectiveAccuracy: it stands beside the share within QoS, in text, JSON and progress.
func TestEffectiveAccuracy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &familyServer{fakeServer: fakeServer{after(time.Millisecond), fakeProperties()}}
		var models []*TargetModel
		for _, name := range []string{"ctr", "plain"} {
			m, err := NewTargetModel(t.Context(), server, name, ModelOptions{
				LargestBatchSize: 64, Seed: 1, LeastAccuracy: .8,
			})
			if err != nil {
				t.Fatal(err)
			}
			models = append(models, m)
		}
		server.n = 0
		var shown []string
		r, err := run(t.Context(), server, models, Config{
			Queries: steady(t, 100, "ctr", "plain"), MaxQueries: 400,
			Progress: func(p Progress) { shown = append(shown, p.String()) },
		}, sleepUntil)
		if err != nil {
			t.Fatal(err)
		}
		if server.least != .8 {
			t.Errorf("queries demand an accuracy of %v, want 0.8", server.least)
		}
		ctr, plain := r.Models[0], r.Models[1]
		want := 1 - .1*float64(ctr.Answered/4)/float64(ctr.Answered)
		if math.Abs(ctr.EffectiveAccuracy-want) > 1e-9 || len(ctr.Variants) != 2 ||
			ctr.Variants[0].Model != "wnd" || ctr.Variants[1].Answered != ctr.Answered/4 {
			t.Errorf("ctr: accuracy %v by %+v of %d answers, want %v by wnd and wnd-xs",
				ctr.EffectiveAccuracy, ctr.Variants, ctr.Answered, want)
		}
		if ctr.Emulated != ctr.Answered/4 || plain.Emulated != 0 {
			t.Errorf("of %d answers %d are emulated, want those of wnd-xs; of plain %d", ctr.Answered,
				ctr.Emulated, plain.Emulated)
		}
		if plain.EffectiveAccuracy != 0 || plain.Variants != nil {
			t.Errorf("plain: accuracy %v by %+v, want none", plain.EffectiveAccuracy, plain.Variants)
		}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"within QoS  accuracy", " 0.97", "ctr: answered by wnd 7",
			"% (accuracy 1.0000), wnd-xs 2", " answers are of emulated agents",
		} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("report:\n%s\nwant %q in it", &text, want)
			}
		}
		if len(shown) == 0 || !strings.Contains(shown[0], "ctr accuracy 0.97") {
			t.Errorf("progress: %q, want the accuracy of ctr", shown)
		}
		out, err := json.Marshal(r)
		if err != nil || strings.Count(string(out), `"effective_accuracy":0.97`) != 1 {
			t.Errorf("JSON: %s, %v, want one effective_accuracy", out, err)
		}
	})
}
