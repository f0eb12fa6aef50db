package day

import (
	"bufio"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPublicRecords: the loads of Azure's functions and Alibaba's services, by minutes, of all and of
// the largest ones; the files have the published form, and lines that we made up.
func TestPublicRecords(t *testing.T) {
	for _, tt := range []struct {
		file string
		rank int
		want []float64
	}{
		{"azure-2019.csv", 0, []float64{11, 101, 1, 21}},
		{"azure-2019.csv", 1, []float64{0, 100, 0, 0}},
		{"azure-2019.csv", 2, []float64{11, 1, 1, 21}},
		{"azure-2021.csv", 0, []float64{2, 1, 1}},
		{"azure-2021.csv", 1, []float64{1, 1, 1}},
		{"azure-2021.csv", 2, []float64{1, 0, 0}},
		{"alibaba-2025.csv", 0, []float64{2, 2, 2, 2}},
		{"alibaba-2025.csv", 1, []float64{1, 2, 2, 1}},
		{"alibaba-2025.csv", 2, []float64{1, 0, 0, 1}},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", tt.file))
		if err != nil {
			t.Fatal(err)
		}
		b := bufio.NewReader(strings.NewReader(string(text)))
		format := formatOf(b)
		if format == nil {
			t.Fatalf("%s is no public record", tt.file)
		}
		got, err := countServices(format, b, tt.rank)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s #%d: got %v, %v, want %v", tt.file, tt.rank, got, err, tt.want)
		}
	}
}

// TestCurveOfPublicRecord: a public record is a curve of its minutes; that of one service may come
// later.
func TestCurveOfPublicRecord(t *testing.T) {
	for text, want := range map[string]float64{
		"testdata/azure-2019.csv": 4 * 101. / 134, "testdata/azure-2019.csv#2": 4 * 1. / 34,
		"testdata/azure-2019.csv#2+1m": 4 * 11. / 34,
	} {
		c, err := ParseCurve(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.At(90 * time.Second); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

// TestPublicRecordsThatCannotBe: what is wrong names the file, the line, what was found and what is
// wanted.
func TestPublicRecordsThatCannotBe(t *testing.T) {
	const minutes, calls = "HashOwner,HashApp,HashFunction,Trigger,1,2\n",
		"app,func,end_timestamp,duration\n"
	const instances = "instance_sn,role,app_name,creation_time,deletion_time\n"
	for _, tt := range []struct{ text, rank, want string }{
		{minutes + "o,a,f,http,1,x\n", "", `line 2: 2: got "x", want a number`},
		{minutes + "o,a,f,http,1\n", "", "line 2: wrong number of fields"},
		{minutes + "o,a,f,http,1,-2\n", "", "minute 2: got -2 calls, want 0 or more"},
		{minutes + "o,,f,http,1,2\n", "", "want a name of 1 to 256 bytes"},
		{minutes + "o,a,f,http,1,2\n", "#2", "got #2, want #1 to #1: it has 1 services"},
		{minutes + "o,a,f,http,1,2\n", "#0", "want the rank of a service, from #1"},
		{minutes, "", "lasts 0 minutes"},
		{calls + "a,f,,1\n", "", "got the time NaN s"},
		{calls + "a,f,1e12,1\n", "", "want 0..5184000"},
		{calls + "a,f,Inf,1\n", "", `got "Inf", want a number`},
		{instances + "i,HN,a,100,50\n", "", "deletion_time: got 50, before creation_time, 100"},
		{"instance_sn,role,app_name,gone\ni,HN,a,1\n", "", "there is no column creation_time"},
		{"{}", "#1", "is no public record of services"},
	} {
		path := filepath.Join(t.TempDir(), "record.csv")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ParseCurve(path+tt.rank, func(string) ([]float64, error) { return nil, nil })
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			!strings.Contains(err.Error(), "record.csv") {
			t.Errorf("%q: got %v, want %q", tt.text, err, tt.want)
		}
	}
}

// FuzzPublicRecords: no file makes the reader fail otherwise than by an error, and no load is below
// zero but where instances go that never came.
func FuzzPublicRecords(f *testing.F) {
	for _, name := range []string{"azure-2019.csv", "azure-2021.csv", "alibaba-2025.csv"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), 1)
	}
	f.Fuzz(func(t *testing.T, text string, rank int) {
		b := bufio.NewReader(strings.NewReader(text))
		format := formatOf(b)
		if format == nil || rank < 0 || len(text) > 1<<12 {
			return
		}
		counts, err := countServices(format, b, rank)
		for i, n := range counts {
			if err == nil && !(n >= 0) {
				t.Fatalf("minute %d: %v", i, n)
			}
		}
	})
}

// TestTracking: an autoscaler's fleet is of one type, and about as busy as it shall be; it costs
// more than the one that is planned.
func TestTracking(t *testing.T) {
	at := func(form string) *Result {
		c := small(t, 1)
		c.Renting.Length, c.Renting.Speed = 6*time.Hour, 240
		c.Curves[0].shift = 18 * time.Hour
		c.Renting.Choose.MaxPrice, c.Renting.Rent.MaxPrice = 20, 20
		return mustRun(t, c, form)
	}
	tracking, renting := at(Tracking), at(Renting)
	t.Logf("%s: $%.2f, in time %.4f, use %.2f, %d changes; renting: $%.2f, %.4f, %.2f",
		tracking.Fleet, tracking.Dollars, tracking.InTime, tracking.Use, tracking.Changes,
		renting.Dollars, renting.InTime, renting.Use)
	if tracking.Use < trackedShare-.15 || tracking.Use > trackedShare+.1 || tracking.Changes < 3 {
		t.Errorf("machines are busy for %.2f of their time, want about %.2f; %d changes",
			tracking.Use, trackedShare, tracking.Changes)
	}
	if tracking.InTime < .97 || tracking.Dollars < renting.Dollars {
		t.Errorf("$%.2f, in time %.4f; renting costs $%.2f", tracking.Dollars, tracking.InTime,
			renting.Dollars)
	}
}
