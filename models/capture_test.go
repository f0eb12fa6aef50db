package models

import (
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
)

// TestCaptureSettings: what is kept is read as it is written, and each fault is named.
func TestCaptureSettings(t *testing.T) {
	c, err := parseConfig("model.yaml",
		[]byte("requires: 3\ncapture: {share: .5, leave_out: [a, client], hash: [b]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.YAML()
	if err != nil || !strings.Contains(string(text), "{share: 0.5, leave_out: [a, client], hash: [b]}") {
		t.Errorf("%s, %v", text, err)
	}
	for settings, want := range map[string]string{
		"capture: {share: 1}":                                         "it must say requires: 3",
		"requires: 3\ncapture: {hash: [a]}":                           "capture: has no share",
		"requires: 3\ncapture: {share: 2}":                            "capture.share: got \"2\"",
		"requires: 3\ncapture: {share: 1, hash: [a], leave_out: [a]}": `"a" is in leave_out and in hash`,
		"requires: 3\ncapture: {share: 1, to: x}":                     `unknown key "capture.to"`,
	} {
		if _, err := parseConfig("model.yaml", []byte(settings)); err == nil || !strings.Contains(
			strings.ReplaceAll(err.Error(), "the file must", "it must"), want) {
			t.Errorf("%s: %v, want %q", settings, err, want)
		}
	}
	v := &Version{
		Inputs:  []TensorSpec{{Name: "a", DataType: tensor.Int64}, {Name: "x", DataType: tensor.FP32}},
		Outputs: []TensorSpec{{Name: "y", DataType: tensor.FP32}},
		Config:  Config{Capture: Capture{LeaveOut: []string{"y", "client"}, Hash: []string{"a"}}},
	}
	if errs := v.checkCapture(); len(errs) > 0 {
		t.Errorf("columns that are there: %v", errs)
	}
	v.Config.Capture = Capture{LeaveOut: []string{"z"}, Hash: []string{"x"}}
	if errs := v.checkCapture(); len(errs) != 2 || !strings.Contains(errs[0].Error(), "a, x, y") ||
		!strings.Contains(errs[1].Error(), "FP32") {
		t.Errorf("a column that is not there, and one without a hash: %v", errs)
	}
}
