package oip

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestProperties(t *testing.T) {
	for _, want := range []Properties{
		{},
		{QoSTarget: 5 * time.Millisecond, QoSPercentile: 99.9, Deadline: 1500 * time.Microsecond,
			LargestBatchSize: 1000,
			IDBounds:         map[string][]int64{"ids": {140_000, 28_000}, "one": {7}}},
		{Labels: map[string][]string{"p": {"0", "a, \"b\"", ""}}, Optional: []string{"bias"}},
		{Family: "ctr", Variants: []string{"wnd", "wnd-int8"},
			Accuracy: map[string]float64{"wnd": 1, "wnd-int8": .9994},
			Score:    map[string]float64{"wnd": .7166}},
	} {
		got, err := ParseProperties(want.Map())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v and error %v, want %+v", got, err, want)
		}
	}
	if got, err := ParseProperties(map[string]string{"colour": "blue"}); err != nil ||
		!reflect.DeepEqual(got, Properties{}) {
		t.Errorf("unknown property: got %+v and error %v", got, err)
	}
	for name, value := range map[string]string{
		"qos_target_ms": "0", "qos_percentile": "NaN", "deadline_ms": "soon",
		"largest_batch_size": "1e300", "id_bounds.ids": "5,0", "labels.p": "a,b",
		"optional":     `["a"`,
		"accuracy.wnd": "1.5", "score.wnd": "high",
	} {
		if _, err := ParseProperties(map[string]string{name: value}); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s = %q: error %v, want one that names it", name, value, err)
		}
	}
}
