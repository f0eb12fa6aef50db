package leader

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestTargetUnmet: a model that cannot meet its target is told of once, and once when it can again;
// its status says so, and why. The serial form has it.
func TestTargetUnmet(t *testing.T) {
	in := newTold(t)
	in.greet("w0")
	in.learn(time.Millisecond)
	gone := ModelID{"gone", 2}
	advise := func(unmet ...Unmet) (told []string) {
		e := &Event{Kind: Learned, Advice: &Advice{Limit: 7, Priced: true, Unmet: unmet}}
		text := AppendEvent(nil, in.now, e)
		_, again, err := ParseEvent(text)
		if err != nil || !slices.Equal(again.Advice.Unmet, unmet) {
			t.Errorf("%s: got %v, %v", text, again.Advice, err)
		}
		for _, a := range in.Step(in.now, &again) {
			if a.Kind == TargetUnmet {
				told = append(told, fmt.Sprint(a.Model.Key(), " ", a.Share, " ", a.Message))
			}
		}
		return told
	}
	const slow, nobody = "no lane answers these queries within the QoS target, however idle",
		"no agent that takes queries holds the model"
	for i, step := range []struct {
		unmet []Unmet
		told  []string
	}{
		{nil, nil},
		{[]Unmet{{gone, 1}, {modelM, 0.25}}, []string{"gone/2 1 " + nobody, "m/1 0.25 " + slow}},
		{[]Unmet{{modelM, 0.5}}, []string{"gone/2 0 "}},
		{[]Unmet{{modelM, 0.5}}, nil},
		{nil, []string{"m/1 0 "}},
	} {
		if told := advise(step.unmet...); !slices.Equal(told, step.told) {
			t.Errorf("step %d: told %q, want %q", i, told, step.told)
		}
		status := in.Status().Models[0]
		want := 0.0
		if n := len(step.unmet); n > 0 {
			want = step.unmet[n-1].Share
		}
		if status.Unmet != want || (status.WhyUnmet == slow) != (want > 0) {
			t.Errorf("step %d: the status has %v, %q; want %v", i, status.Unmet, status.WhyUnmet, want)
		}
	}
}
