package lists

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"
)

func TestVar(t *testing.T) {
	for _, tt := range []struct {
		given, want []string
	}{
		{nil, []string{"default"}},
		{[]string{"a,b"}, []string{"a", "b"}},
		{[]string{"10.0.0.1:7946, 10.0.0.2:7946"}, []string{"10.0.0.1:7946", "10.0.0.2:7946"}},
		{[]string{" a\t,, b ,"}, []string{"a", "b"}},
		{[]string{"a", " b,c"}, []string{"a", "b", "c"}},
		{[]string{`"a, b",c`}, []string{"a, b", "c"}},
		{[]string{","}, []string{}},
		{[]string{""}, []string{}},
	} {
		var got []string
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		Var(flags, &got, "list", []string{"default"}, "")
		for _, text := range tt.given {
			if err := flags.Set("list", text); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q: got %q, want %q", tt.given, got, tt.want)
		}
	}
}

// TestSlice: entries that are given one by one, as a config file's, are read alike.
func TestSlice(t *testing.T) {
	var got []string
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	Var(flags, &got, "list", nil, "")
	value := flags.Lookup("list").Value.(pflag.SliceValue)
	if err := value.Replace([]string{" a", "", "b, c "}); err != nil {
		t.Fatal(err)
	}
	if err := value.Append(" d "); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a", "b, c", "d"}; !slices.Equal(got, want) ||
		!slices.Equal(value.GetSlice(), want) {
		t.Errorf("got %q and %q, want %q", got, value.GetSlice(), want)
	}
}
