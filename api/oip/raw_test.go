package oip

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
)

// TestDecodeRawTensor: a body without JSON has the name and type that the model says, and a shape of
// as many elements as there are bytes for.
func TestDecodeRawTensor(t *testing.T) {
	for _, tt := range []struct {
		datatype tensor.DataType
		shape    []int64
		body     string
		want     []int64
		data     string
	}{
		{tensor.FP32, []int64{-1, 2}, "12345678abcdefgh", []int64{2, 2}, "12345678abcdefgh"},
		{tensor.FP32, []int64{-1, -1}, "12345678abcdefgh", []int64{1, 4}, "12345678abcdefgh"},
		{tensor.FP32, []int64{1, 2}, "12345678", []int64{1, 2}, "12345678"},
		{tensor.FP32, []int64{3, -1}, "", []int64{3, 0}, ""},
		{tensor.Uint8, []int64{}, "x", []int64{}, "x"},
		{tensor.Bool, []int64{-1}, "\x00\x01", []int64{2}, "\x00\x01"},
		{tensor.Bytes, []int64{-1, 1}, "hello", []int64{1, 1}, "\x05\x00\x00\x00hello"},
		{tensor.Bytes, []int64{-1, -1}, "", []int64{1, 1}, "\x00\x00\x00\x00"},
	} {
		in := []tensor.Tensor{{Name: "x", DataType: tt.datatype, Shape: tt.shape}}
		r := post(tt.body, 0)
		if !IsRawTensor(r.Header) {
			t.Fatal("not a raw tensor")
		}
		req, err := DecodeRawTensor(r, in, testLimit, nil)
		if err != nil {
			t.Errorf("%s %v: %v", tt.datatype, tt.shape, err)
			continue
		}
		got := req.Inputs[0]
		if got.Name != "x" || got.DataType != tt.datatype || !slices.Equal(got.Shape, tt.want) ||
			string(got.Data) != tt.data || !req.JSON || !req.BinaryOutputs {
			t.Errorf("%s %v: got %+v, want shape %v and data %q", tt.datatype, tt.shape, got, tt.want,
				tt.data)
		}
		req.Release()
	}
	for _, header := range []int{-1, 12} {
		if IsRawTensor(post("{}", header).Header) {
			t.Errorf("a header of %d bytes is taken for a raw tensor", header)
		}
	}
}

func TestDecodeRawTensorErrors(t *testing.T) {
	x := func(datatype tensor.DataType, shape ...int64) []tensor.Tensor {
		return []tensor.Tensor{{Name: "x", DataType: datatype, Shape: shape}}
	}
	for _, tt := range []struct {
		inputs []tensor.Tensor
		body   string
		want   string
	}{
		{nil, "", "the model has 0"},
		{append(x(tensor.FP32, -1), x(tensor.FP32, -1)...), "1234", "the model has 2"},
		{x(tensor.FP32, -1, 2), "1234567", "found 7 bytes, expected a multiple of 8 for FP32 [-1 2]"},
		{x(tensor.FP32, 2), "1234", "found 4 bytes, expected a multiple of 8"},
		{x(tensor.FP32, 0, -1), "1234", "found 4 bytes"},
		{x(tensor.FP32, 1<<40, 1<<40), "", "x"},
		{x(tensor.FP32, 1<<31, 1<<31), "", "x"},
		{x(tensor.FP32, 2, -1, -1), "12345678", "does not say which size each dimension has"},
		{x(tensor.Bytes, 2), "hello", "is one string"},
		{x(tensor.Bool, -1), "\x02", "BOOL element 0 is 2"},
		{x(tensor.FP64, -1), strings.Repeat("12345678", testLimit/8+1), "more than"},
	} {
		req, err := DecodeRawTensor(post(tt.body, 0), tt.inputs, testLimit, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			!errors.Is(err, ErrInvalid) && !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v: got %v, %v, want an error with %q", tt.inputs, req, err, tt.want)
		}
	}
}

// TestDecodeNull: null for a key that may be left out is as if it were.
func TestDecodeNull(t *testing.T) {
	req, err := DecodeRequest(post(`{"id": null, "parameters": null, "outputs": null, "inputs": [
		{"name": "x", "shape": [1], "datatype": "INT64", "data": [7], "parameters": null}]}`, -1),
		testLimit, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer req.Release()
	if req.ID != "" || req.Parameters != nil || req.Outputs != nil || len(req.Inputs) != 1 {
		t.Errorf("got %+v", req)
	}
	binary := `{"inputs": [{"name": "x", "shape": [1], "datatype": "UINT8", "data": null,
		"parameters": {"binary_data_size": 1}}], "outputs": [{"name": "y", "parameters": null}]}`
	req, err = DecodeRequest(post(binary+"z", len(binary)), testLimit, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer req.Release()
	if string(req.Inputs[0].Data) != "z" || req.Outputs[0].Binary != nil {
		t.Errorf("got %+v", req)
	}
	for _, body := range []string{
		`{"inputs": null}`,
		`{"inputs": [null]}`,
		`{"inputs": [{"name": null, "shape": [1], "datatype": "UINT8", "data": [1]}]}`,
		`{"inputs": [{"name": "x", "shape": null, "datatype": "UINT8", "data": [1]}]}`,
		`{"id": nul, "inputs": []}`,
	} {
		if _, err := DecodeRequest(post(body, -1), testLimit, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want an error", body, err)
		}
	}
}
