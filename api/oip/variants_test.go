package oip

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
)

// leastAccuracies are values of the parameter least_accuracy, as JSON and as gRPC's parameter, with
// what they mean; 0: they are refused.
var leastAccuracies = []struct {
	text  string
	param *inference.InferParameter
	want  float64
}{
	{"0.97", double(.97), .97},
	{"1", &inference.InferParameter{
		ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 1}}, 1},
	{"1.0", double(1), 1},
	{"0", double(0), 0},
	{"-0.5", double(-.5), 0},
	{"1.001", double(1.001), 0},
	{"2", &inference.InferParameter{
		ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: 2}}, 0},
	{`"high"`, &inference.InferParameter{
		ParameterChoice: &inference.InferParameter_StringParam{StringParam: "high"}}, 0},
	{"true", &inference.InferParameter{
		ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: true}}, 0},
}

func double(x float64) *inference.InferParameter {
	return &inference.InferParameter{
		ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: x},
	}
}

func TestLeastAccuracy(t *testing.T) {
	names := map[bool]string{false: "min_accuracy", true: "least_accuracy"}
	both := `{"parameters":{"min_accuracy":0.9,"least_accuracy":0.9},` +
		`"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[1]}]}`
	if _, err := DecodeRequest(post(both, -1), testLimit, nil); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), "expected one of them") {
		t.Errorf("both names: got %v, want that one is expected", err)
	}
	check := func(how, value string, req *Request, err error, want float64) {
		t.Helper()
		switch {
		case want == 0:
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "_accuracy") {
				t.Errorf("%s: least_accuracy %s: error %v, want one that names it", how, value, err)
			}
		case err != nil || req.LeastAccuracy != want || req.Parameters != nil:
			t.Errorf("%s: least_accuracy %s: got %v, parameters %v, error %v, want %v and none",
				how, value, req.LeastAccuracy, req.Parameters, err, want)
		}
	}
	for _, c := range leastAccuracies {
		name := names[c.text == "1"] // both names mean the same
		body := `{"parameters":{"` + name + `":` + c.text +
			`},"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[1]}]}`
		req, err := DecodeRequest(post(body, -1), testLimit, nil)
		check("REST", c.text, req, err, c.want)

		wire, err := proto.Marshal(&inference.ModelInferRequest{ModelName: "ctr",
			Parameters: map[string]*inference.InferParameter{name: c.param}})
		if err != nil {
			t.Fatal(err)
		}
		req = new(Request)
		check("gRPC", c.text, req, req.unmarshal(split(wire, 7)), c.want)

		if c.want == 0 {
			continue
		}
		sent, err := (&Request{Model: "ctr", LeastAccuracy: c.want}).marshal()
		if err != nil {
			t.Fatal(err)
		}
		req = new(Request)
		check("sent", c.text, req, req.unmarshal(sent), c.want)
	}
	if err := (&Request{LeastAccuracy: 1.5}).Check(); !errors.Is(err, ErrInvalid) {
		t.Errorf("Check of a least accuracy of 1.5: %v, want an error", err)
	}
}

func TestVariantOfAnswer(t *testing.T) {
	out, err := tensor.Of("y", []float32{.5}, 1)
	if err != nil {
		t.Fatal(err)
	}
	answer := func() *Response {
		return &Response{
			Model: "wnd-int8", Version: "3", Outputs: []tensor.Tensor{out},
			Parameters: map[string]any{"a": int64(7)},
		}
	}
	for _, c := range []struct {
		accuracy float64
		want     string
	}{
		{.9994, `"model_version":"","parameters":{"variant":"wnd-int8","variant_version":"3",` +
			`"accuracy":0.9994,"a":7}`},
		{0, `"parameters":{"variant":"wnd-int8","variant_version":"3","a":7}`},
	} {
		want := answer()
		want.AnsweredBy("ctr", c.accuracy)
		if want.Model != "ctr" || want.Version != "" || want.Variant != "wnd-int8" ||
			want.VariantVersion != "3" || want.Accuracy != c.accuracy {
			t.Fatalf("AnsweredBy: %+v", want)
		}
		wire, err := want.marshal()
		if err != nil {
			t.Fatal(err)
		}
		var got Response
		if err := got.unmarshal(wire); err != nil {
			t.Fatal(err)
		}
		got.hold = nil
		if !reflect.DeepEqual(&got, want) {
			t.Errorf("gRPC: got %+v, want %+v", &got, want)
		}
		text, err := appendResponse(nil, &Request{}, want)
		if err != nil || !strings.Contains(string(text), c.want) {
			t.Errorf("REST: got %s, error %v, want %s in it", text, err, c.want)
		}
	}
	// Other servers' parameters stay as they are.
	other := answer()
	other.Parameters = map[string]any{"accuracy": .5, "variant": int64(1)}
	wire, err := other.marshal()
	if err != nil {
		t.Fatal(err)
	}
	var got Response
	if err := got.unmarshal(wire); err != nil || got.Variant != "" || got.Accuracy != 0 ||
		!reflect.DeepEqual(got.Parameters, other.Parameters) {
		t.Errorf("got %+v, error %v, want the parameters %v", &got, err, other.Parameters)
	}
}
