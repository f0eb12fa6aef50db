package profiles_test

import (
	"bytes"
	"compress/gzip"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
)

func TestSamplesMatchTheirSummary(t *testing.T) {
	samples := kairosSamples(t)
	tables := map[*profiles.Series]*profiles.Table{}
	for _, m := range kairosLatency(t) {
		series, err := samples.Series(m.model, m.instanceType)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(series.At(m.batch)); got != 99 {
			t.Errorf("%s on %s at batch size %d: %d samples, want 99", m.model, m.instanceType,
				m.batch, got)
		}
		if got := ms(series.Mean(m.batch)); math.Abs(got-m.mean) > 2e-5*m.mean+1e-5 {
			t.Errorf("%s on %s at batch size %d: mean %v, want %v", m.model, m.instanceType,
				m.batch, got, m.mean)
		}
		if tables[series] == nil {
			if tables[series], err = series.Table(profiles.Key{}); err != nil {
				t.Fatal(err)
			}
		}
		table := tables[series]
		if got := ms(table.Quantile(0.5, m.batch)); math.Abs(got-m.p50) > 2e-5*m.p50+1e-5 {
			t.Errorf("%s on %s at batch size %d: p50 %v, want %v", m.model, m.instanceType, m.batch,
				got, m.p50)
		}
	}
}

func TestReadRIBBONSamples(t *testing.T) {
	samples, err := published.Samples(published.RIBBON)
	if err != nil {
		t.Fatal(err)
	}
	if got := samples.Models(); !slices.Equal(got, []string{"dien", "mtwnd"}) {
		t.Errorf("models are %v", got)
	}
	for _, model := range samples.Models() {
		if got := samples.Types(model); !slices.Equal(got,
			[]profiles.InstanceType{"c5.2xlarge", "g4dn.xlarge", "r5n.large"}) {
			t.Errorf("%s: instance types are %v", model, got)
		}
	}
}

const samplesText = "model,instance_type,batch_size,sample_ms\n" +
	"ncf,a,10,1\nncf,a,20,2\nncf,b,20,4\nncf,b,10,3\nncf,a,20,2.5\n"

func TestReadSamples(t *testing.T) {
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	z.Write([]byte(samplesText))
	z.Close()
	for name, data := range map[string]string{"plain": samplesText, "gzip": compressed.String()} {
		samples, err := profiles.ReadSamples(name, strings.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		a, err := samples.Series("ncf", "a")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			batch int
			want  time.Duration
			n     int
		}{{1, 1e6, 1}, {10, 1e6, 1}, {11, 2e6, 2}, {20, 2e6, 2}, {500, 2e6, 2}} {
			if got := a.At(c.batch); len(got) != c.n || got[0] != c.want {
				t.Errorf("%s: samples at %d are %v", name, c.batch, got)
			}
		}
		if got := a.Mean(20); got != 2250*time.Microsecond {
			t.Errorf("%s: mean at 20 is %v", name, got)
		}
		if _, err := samples.Series("rm2", "a"); err == nil ||
			!strings.Contains(err.Error(), "only of ncf") {
			t.Errorf("unknown model: %v", err)
		}
		if _, err := samples.Series("ncf", "c"); err == nil ||
			!strings.Contains(err.Error(), "only on a, b") {
			t.Errorf("unknown instance type: %v", err)
		}
	}
}

func TestReadSamplesErrors(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", "empty"},
		{"a,b\n", "line 1: the header"},
		{"model,instance_type,batch_size,sample_ms\n", "no line after the header"},
		{"model,instance_type,batch_size,sample_ms\nncf,a,10\n", "line 2: 3 columns, want 4"},
		{"model,instance_type,batch_size,sample_ms\n,a,10,1\n", "line 2, column model: empty"},
		{"model,instance_type,batch_size,sample_ms\nncf,,10,1\n",
			"line 2, column instance_type: empty"},
		{"model,instance_type,batch_size,sample_ms\nncf,a,0,1\n", "line 2, column batch_size"},
		{"model,instance_type,batch_size,sample_ms\nncf,a,ten,1\n",
			`line 2, column batch_size: "ten"`},
		{"model,instance_type,batch_size,sample_ms\nncf,a,99999999999999999999,1\n",
			"line 2, column batch_size"},
		{"model,instance_type,batch_size,sample_ms\nncf,a,10,1\nncf,a,10,NaN\n",
			`line 3, column sample_ms: "NaN"`},
		{"model,instance_type,batch_size,sample_ms\nncf,a,10,Inf\n", "column sample_ms"},
		{"model,instance_type,batch_size,sample_ms\nncf,a,10,0\n", "column sample_ms"},
		{"model,instance_type,batch_size,sample_ms\nncf,a,10,-1\n", "column sample_ms"},
		{"model,instance_type,batch_size,sample_ms\nncf,a,10,\n", "column sample_ms"},
		{"model,instance_type,batch_size,sample_ms\nncf,a,10,1\n\"x", "line 3"},
		{"\x1f\x8b", "EOF"},
		{samplesText + "ncf,c,10,1\n", "no sample of ncf on c at batch size 20"},
	} {
		_, err := profiles.ReadSamples("s.csv", strings.NewReader(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "s.csv") {
			t.Errorf("reading %q: %v, want %q", c.in, err, c.want)
		}
	}
	if _, err := profiles.OpenSamples("no/such.csv"); err == nil ||
		!strings.Contains(err.Error(), "no/such.csv") {
		t.Errorf("missing file: %v", err)
	}
}

func FuzzReadSamples(f *testing.F) {
	f.Add([]byte(samplesText))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		samples, err := profiles.ReadSamples("f", bytes.NewReader(in))
		if err != nil {
			return
		}
		for _, model := range samples.Models() {
			for _, it := range samples.Types(model) {
				series, err := samples.Series(model, it)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := series.Table(profiles.Key{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
