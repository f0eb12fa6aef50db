package oip

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/muster-serve/muster/api/tensor"
)

// DecodeInputs decodes a JSON array of tensors, as a query's body has it under "inputs".
func DecodeInputs(text []byte) ([]tensor.Tensor, error) {
	body := io.MultiReader(bytes.NewReader([]byte(`{"inputs":`)), bytes.NewReader(text),
		bytes.NewReader([]byte{'}'}))
	req, err := DecodeRequest(&http.Request{
		Body: io.NopCloser(body), Header: http.Header{}, ContentLength: -1,
	}, int64(len(text))+16, nil)
	if err != nil {
		return nil, err
	}
	return req.Inputs, nil
}

// AppendInputs appends tensors as [DecodeInputs] reads them.
func AppendInputs(b []byte, inputs []tensor.Tensor) (_ []byte, err error) {
	for i := range inputs {
		b = append(b, "[,"[min(i, 1)])
		b = append(appendTensorHead(b, &inputs[i]), `,"data":`...)
		if b, err = appendJSONTensor(b, &inputs[i]); err != nil {
			return b, fmt.Errorf("input %q: %w", inputs[i].Name, err)
		}
		b = append(b, '}')
	}
	if len(inputs) == 0 {
		b = append(b, '[')
	}
	return append(b, ']'), nil
}

// appendTensorHead appends the beginning of a tensor's object: all but its data.
func appendTensorHead(b []byte, t *tensor.Tensor) []byte {
	b = append(b, `{"name":`...)
	b = appendJSONString(b, t.Name)
	b = append(b, `,"datatype":`...)
	b = appendJSONString(b, string(t.DataType))
	b = append(b, `,"shape":[`...)
	for k, d := range t.Shape {
		if k > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, d, 10)
	}
	return append(b, ']')
}
