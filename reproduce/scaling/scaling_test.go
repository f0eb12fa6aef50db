package scaling

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/reproduce/merging"
	"github.com/muster-serve/muster/reproduce/placements"
)

// small is a fleet of two families of two variants; the second takes a third of the time.
func small() *placements.Fleet {
	f := &placements.Fleet{
		Types: []place.Type{{Name: "fast", Count: 3}, {Name: "slow", Count: 3}},
		Sizes: []int{1, 2, 4},
		Families: []placements.Family{
			{Name: "a", Target: 200 * time.Millisecond, Expected: 120},
			{Name: "b", Target: 200 * time.Millisecond, Expected: 30},
		},
	}
	for k := range 2 {
		for v, accuracy := range []float64{100, 94} {
			f.Variants = append(f.Variants, placements.Variant{
				Model: string(rune('a'+k)) + string(rune('0'+v)), Family: k, Accuracy: accuracy,
			})
		}
	}
	for t := range f.Types {
		var of [][]time.Duration
		for v := range f.Variants {
			base := 30 * time.Millisecond * time.Duration(t+1)
			if v%2 == 1 {
				base /= 3
			}
			of = append(of, []time.Duration{base, base * 3 / 2, base * 5 / 2})
		}
		f.Latency = append(f.Latency, of)
	}
	return f
}

func simulate(t *testing.T, c *Config) *Result {
	t.Helper()
	r, err := Run(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	arrived := 0
	for _, s := range append(slices.Clone(r.Seconds), r.Total) {
		arrived += s.Arrived
		if s.Served+s.Dropped != s.Arrived || s.Late > s.Served || s.AfterASecond > s.Served ||
			s.Stuck > s.Dropped {
			t.Fatalf("a second counts %+v", s)
		}
	}
	if arrived != 2*len(c.Queries) {
		t.Fatalf("%d queries have an outcome, and %d arrived", arrived/2, len(c.Queries))
	}
	return r
}

// TestSystems: every query has one outcome, whatever the system and its batching; the same run has
// the same result; and Muster violates fewer targets than who holds the best variants always, at
// more accuracy than who holds the worst.
func TestSystems(t *testing.T) {
	f := small()
	queries := Arrivals(f, Bursty)
	queries = queries[:slices.IndexFunc(queries, func(q Query) bool { return q.At > time.Minute })]
	by := map[string]*Result{}
	often := func(second int, _ *placements.State) bool { return second%2 == 0 }
	for _, c := range []struct {
		name string
		Config
	}{
		{"clipper-ha", Config{Rival: &placements.Clipper{MostAccurate: true}, Batching: merging.AIMD}},
		{"clipper-ht", Config{Rival: &placements.Clipper{}, Batching: merging.AIMD}},
		{"artifact-aimd", Config{Rival: &placements.Clipper{}, Batching: ArtifactAIMD}},
		{"artifact-nexus", Config{Rival: &placements.Proteus{}, Batching: ArtifactNexus}},
		{"artifact-proteus", Config{Rival: &placements.Proteus{}, Batching: ArtifactProteus}},
		{"artifact-single", Config{Rival: &placements.Proteus{}, Batching: ArtifactSingle}},
		{"sommelier", Config{
			Rival: &placements.Proteus{KeepFamilies: true}, Batching: ArtifactSommelier}},
		{"infaas", Config{Rival: &placements.INFaaS{AsArtifact: true}, Batching: ArtifactINFaaS}},
		{"infaas, ours", Config{Rival: &placements.INFaaS{}, Batching: names.MergeDeadline}},
		{"slackfit", Config{Rival: &placements.SlackFit{}}},
		{"muster", Config{
			Place: (&placements.Proteus{Headroom: 1.3}).Place, Batching: names.MergeDeadline,
			Solves: often,
		}},
		{"muster, loads", Config{
			Place: (&placements.Proteus{Headroom: 1.3}).Place, Batching: names.MergeDeadline,
			Load: time.Second, Solves: often,
		}},
	} {
		cfg := c.Config
		cfg.Fleet, cfg.Queries, cfg.Seed = f, queries, 1
		by[c.name] = simulate(t, &cfg)
		t.Logf("%-18s violations %.4f, accuracy %.2f, drop %.2f, changes %d", c.name,
			by[c.name].Total.Violations(), by[c.name].Total.Accuracy(), by[c.name].Drop(),
			by[c.name].Changes)
	}
	again := simulate(t, &Config{
		Fleet: f, Queries: queries, Seed: 1, Place: (&placements.Proteus{Headroom: 1.3}).Place,
		Batching: names.MergeDeadline, Solves: often,
	})
	muster := by["muster"]
	if !slices.Equal(again.Seconds, muster.Seconds) {
		t.Error("the same run has another result")
	}
	if ha := by["clipper-ha"]; muster.Total.Violations() > 0.7*ha.Total.Violations() {
		t.Errorf("Muster violates %.4f, the best variants alone %.4f", muster.Total.Violations(),
			ha.Total.Violations())
	}
	if ht := by["clipper-ht"]; muster.Total.Accuracy() < ht.Total.Accuracy()+1 {
		t.Errorf("Muster's accuracy is %.2f, the worst variants' %.2f", muster.Total.Accuracy(),
			ht.Total.Accuracy())
	}
}

// TestAccounting: the artifact counts what takes more than 1 s as late and forgets what has no
// outcome.
func TestAccounting(t *testing.T) {
	s := Second{Arrived: 10, Served: 6, Late: 3, AfterASecond: 1, Dropped: 4, Stuck: 2}
	if v := s.Violations(); v != 0.7 {
		t.Errorf("violations are %v, want .7", v)
	}
	if v := s.ByArtifact(); v != 3.0/8 {
		t.Errorf("the artifact's are %v, want 3/8", v)
	}
	r := &Result{Seconds: make([]Second, 20)}
	for i := range r.Seconds {
		r.Seconds[i] = Second{Arrived: 2, Served: 2, Points: 200}
	}
	r.Seconds[13].Points = 100
	if d := r.Drop(); math.Abs(d-5) > 1e-9 {
		t.Errorf("the largest drop is %v, want 5", d)
	}
}

func TestForecasts(t *testing.T) {
	s := placements.NewState(small())
	most, mean := Window(3), EWMA(1)
	for _, x := range []float64{8, 2, 4, 0} {
		s.Demand = []float64{x, 1}
		mean(s)
	}
	if want := (0 + 4/2.0 + 2/4.0 + 8/8.0) / (1 + .5 + .25 + .125); s.Forecast[0] != want {
		t.Errorf("the moving mean is %v, want %v", s.Forecast[0], want)
	}
	for _, x := range []float64{8, 2, 4, 0} {
		s.Demand = []float64{x, 1}
		most(s)
	}
	if s.Forecast[0] != 4 || s.Forecast[1] != 1 {
		t.Errorf("the most of 3 s is %v, want 4 and 1", s.Forecast)
	}
}

// files are of the artifact's form, with numbers of our own.
func files() fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	return fstest.MapFS{
		"profiling/aggregate_profiled.csv": file(
			"Model,Accel,Trials,batchsize,50th_pct\nx1,onnxruntime_cpu,9,1,20.5\n" +
				"x1,onnxruntime_cpu,9,2,30\nx2,onnxruntime_gpu_pascal,9,1,4\nz,onnxruntime_cpu,1,1,1\n"),
		"traces/model_variants/x":                            file("x1,100\nx2,90.5"),
		"traces/model_variants/y":                            file("y1,100"),
		"traces/twitter/asplos/medium-normal_load/300/x.txt": file("# ms\n5,1,300\n1000,1,300\n"),
		"configs/medium-normal_load/clipper_highacc.json": file(
			`{"static_allocation": "placed.txt"}`),
		"placed.txt": file("required:\n{('x1', 'CPU'): 2, ('x2', 'GPU_PASCAL'): 1}\ncanary:\n" +
			"{('CPU-0', 0): 0.25, ('CPU-1', 0): 1.5e-1, ('GPU_PASCAL-0', 0): 0.6}\nx:\n" +
			"{('x1', 'CPU-0'): 1, ('x1', 'CPU-1'): 1, ('x2', 'GPU_PASCAL-0'): 1}"),
	}
}

func TestData(t *testing.T) {
	d, err := NewData(files())
	if err != nil {
		t.Fatal(err)
	}
	f, queries, err := d.Fleet(Twitter)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(queries) != 2 || queries[1].At != time.Second || len(f.Families) != 1 ||
		f.Families[0].Target != 300*time.Millisecond || f.Families[0].Expected != 1 ||
		len(f.Variants) != 2 || f.Variants[1].Accuracy != 90.5 ||
		f.Latency[0][0][0] != 20500*time.Microsecond || f.Latency[2][0][1] != 30*time.Millisecond ||
		f.Latency[3][1][0] != 4*time.Millisecond || f.Latency[1][0][0] != 0 {
		t.Errorf("got %+v and %v", f, queries)
	}
	p, err := d.Placement(f, Twitter, "clipper_highacc")
	if err != nil {
		t.Fatal(err)
	}
	if p.Counts[0][0] != 2 || p.Counts[3][1] != 1 || p.Weights[0][0] != 0.15 ||
		p.Weights[3][1] != 0.6 {
		t.Errorf("got %+v, want two agents with x1 and the weight of the last", p)
	}
}

func TestDataFaults(t *testing.T) {
	if _, err := NewData(fstest.MapFS{}); err == nil ||
		!strings.Contains(err.Error(), "no copy of github.com/UMass-LIDS/Proteus") {
		t.Errorf("an empty folder: %v", err)
	}
	for name, text := range map[string]string{
		"traces/twitter/asplos/medium-normal_load/300/x.txt": "5,1",
		"traces/model_variants/x":                            "x1,good",
		"profiling/aggregate_profiled.csv":                   "Model,Accel\n",
	} {
		all := files()
		all[name] = &fstest.MapFile{Data: []byte(text)}
		d, err := NewData(all)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.Fleet(Twitter); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestArrivals: the own traces have the rates that are expected in the mean, and are the same each
// time.
func TestArrivals(t *testing.T) {
	f := small()
	for _, trace := range []string{Twitter, Bursty, Poisson, Gamma, Uniform} {
		queries := Arrivals(f, trace)
		if !slices.Equal(queries, Arrivals(f, trace)) {
			t.Errorf("%s: two calls differ", trace)
		}
		if rate := float64(len(queries)) / ownSeconds; rate < 110 || rate > 190 {
			t.Errorf("%s: %.1f queries/s, want about 150", trace, rate)
		}
	}
}

// TestWrongProfiles: with profiles that promise too much more queries are violated, and fewer where
// what runs have taken is learned. The matcher's margins (leader/match) make up for part of what
// wrong profiles cost even where nothing is learned, so one and a half times is asked, not twice.
func TestWrongProfiles(t *testing.T) {
	f := small()
	queries := Arrivals(f, Bursty)
	queries = queries[:slices.IndexFunc(queries, func(q Query) bool { return q.At > time.Minute })]
	violations := func(slow []float64, learns bool) float64 {
		return simulate(t, &Config{
			Fleet: f, Queries: queries, Seed: 1, Place: (&placements.Proteus{Headroom: 1.3}).Place,
			Batching: names.MergeDeadline, Slow: slow, Learns: learns,
		}).Total.Violations()
	}
	wrong := []float64{1.5, 1.5}
	right, blind, learned := violations(nil, true), violations(wrong, false), violations(wrong,
		true)
	t.Logf("right %.4f; wrong %.4f, learned %.4f", right, blind, learned)
	if right != violations(nil, false) {
		t.Error("with right profiles something is learned")
	}
	if blind < 1.5*right || learned > (right+blind)/2 {
		t.Errorf("violations %.4f with right profiles, %.4f with wrong ones, %.4f where they are "+
			"learned", right, blind, learned)
	}
	if f.Latency[0][0][0] != small().Latency[0][0][0] {
		t.Error("the caller's fleet has changed")
	}
}

// TestWrongProfilesMend: where all runs take longer than known, few queries are violated after one
// period: what has not run is expected to take longer as well, and a family is not given up because
// no run of it fits twice into its target.
func TestWrongProfilesMend(t *testing.T) {
	for _, c := range []struct {
		name   string
		single bool // family b has one variant, of which no run fits twice
		gap    time.Duration
	}{{"untried", false, 3 * time.Millisecond}, {"no run fits twice", true, 8 * time.Millisecond}} {
		f := small()
		if c.single {
			for typ, of := range f.Latency {
				of[2], of[3] = make([]time.Duration, 3), []time.Duration{
					time.Duration(80+80*typ) * time.Millisecond, 0, 0,
				}
			}
		}
		var queries []Query
		for i := range int(time.Minute / c.gap) {
			queries = append(queries, Query{At: time.Duration(i) * c.gap, Family: i % 25 / 24})
		}
		r := simulate(t, &Config{
			Fleet: f, Queries: queries, Seed: 1, Batching: names.MergeDeadline, Learns: true,
			Place: (&placements.Proteus{Headroom: 1.3, Upgrade: true}).Place, Slow: []float64{1.5, 1.5},
		})
		var later Second
		for i, s := range r.Seconds {
			if i >= 10 {
				later.Add(s)
			}
		}
		t.Logf("%s: in all %.4f, after one period %.4f", c.name, r.Total.Violations(),
			later.Violations())
		if later.Violations() > .01 {
			t.Errorf("%s: after one period %.4f of the queries are violated, want .01 at most",
				c.name, later.Violations())
		}
	}
}
