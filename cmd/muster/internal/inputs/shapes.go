package inputs

import (
	"fmt"
	"strconv"
	"strings"
)

// ShapeHelp is the help of a flag whose values ParseShapes reads.
const ShapeHelp = "shape of a random input with dimensions that the model leaves open, as " +
	"INPUT:DIMxDIM, such as images:1x3x320x320; the first is the batch size, and not used, if the " +
	"model has one; repeat it for several"

// ParseShapes reads shapes of inputs, each as NAME:DIMxDIM. A name may have colons.
func ParseShapes(texts []string) (map[string][]int64, error) {
	shapes := map[string][]int64{}
	for _, text := range texts {
		at := strings.LastIndexByte(text, ':')
		if at < 1 || shapes[text[:at]] != nil {
			return nil, fmt.Errorf("shape: %q, want INPUT:DIMxDIM, each input once", text)
		}
		shape := []int64{}
		for _, dim := range strings.Split(text[at+1:], "x") {
			n, err := strconv.ParseInt(dim, 10, 64)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("shape: %q, want INPUT:DIMxDIM with whole numbers above 0", text)
			}
			shape = append(shape, n)
		}
		shapes[text[:at]] = shape
	}
	return shapes, nil
}
